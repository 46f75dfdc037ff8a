//! Returns freed memory to the operating system. mimalloc does so only when the thread that owns the memory
//! allocates again; an idle core allocates nothing, so memory of its own that other cores freed would stay
//! resident.

#![expect(unsafe_code, reason = "the allocator's own interface")]

/// Returns memory that the calling thread's heap no longer uses to the operating system. Each core calls it
/// when it is idle.
pub(super) fn collect() {
    // SAFETY: mi_collect may be called at any time by any thread that the allocator serves, which is every
    // thread of this process.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
