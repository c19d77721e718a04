//! Writing to standard error without `std`'s lock, which a user thread may hold that is stalled or
//! preempted.

/// Writes `text`, unless standard error is closed.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Writes `bytes`, unless standard error is closed. For signal handlers too.
pub fn print_bytes(mut rest: &[u8]) {
    while !rest.is_empty() {
        // SAFETY: the bytes are `rest`.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written @ 1..) => rest = &rest[written..],
            // Standard error is closed.
            _ => return,
        }
    }
}
