//! Memory that was freed goes back to the system. The allocator gives it back when its thread next asks for some, and a core
//! that has nothing to do asks for none: what other cores freed of its memory would stay for as long.

#![expect(unsafe_code, reason = "the allocator's own interface")]

/// Gives back what the calling thread can.
pub(super) fn collect() {
    // SAFETY: it may be called at any time by any thread that the allocator serves, which is every one of this process.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
