//! The words of a decoded request: the bytes as received, and the position of each argument in them.

/// Position of one argument within the bytes of its request (the frame).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Offset of the argument's first byte from the start of the request's bytes.
    pub start: u32,
    /// Length of the argument in bytes.
    pub length: u32,
}

/// View of one whole request: its bytes, and the position of each argument in them. It is never empty, since
/// a request has at least its command name.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    frame: &'a [u8],
    places: &'a [Argument],
}

impl<'a> Arguments<'a> {
    /// Creates a view of a request whose bytes are `frame`, in which the arguments lie at `places`.
    pub fn new(frame: &'a [u8], places: &'a [Argument]) -> Self {
        debug_assert!(!places.is_empty(), "a request has a command name");
        debug_assert!(places.iter().all(|place| (place.start + place.length) as usize <= frame.len()));
        Self { frame, places }
    }

    /// Returns the bytes of the request, a RESP array of bulk strings that can be forwarded as it is.
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// Returns the positions of the arguments in the request's bytes.
    pub fn places(&self) -> &'a [Argument] {
        self.places
    }

    /// Returns the number of arguments, the command name included.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the command name, which is argument 0.
    pub fn name(&self) -> &'a [u8] {
        self.at(0)
    }

    /// Returns argument `index`, counted from the command name (0); `None` if the request has fewer.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.places.get(index).map(|place| &self.frame[place.start as usize..][..place.length as usize])
    }

    /// Returns argument `index`, counted from the command name (0). Panics if the request has fewer.
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).expect("the caller checked the argument count")
    }

    /// Iterates over all arguments in order, the command name first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let frame = self.frame;
        self.places.iter().map(move |place| &frame[place.start as usize..][..place.length as usize])
    }

    /// Returns a view of the request without its first `count` words, for commands that contain another
    /// request (such as `QOS CALL`); `None` if nothing would be left. The view's bytes are still those of the
    /// whole request, so the inner request must be encoded anew before it is forwarded.
    pub fn skip(&self, count: usize) -> Option<Self> {
        (count < self.places.len()).then(|| Self { frame: self.frame, places: &self.places[count..] })
    }
}
