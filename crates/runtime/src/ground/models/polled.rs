//! The address that poll points look at.

use crate::ground::words::polled::Polled;
use loom::thread;
use std::sync::Arc;

/// Addresses, of which nothing is read.
fn word(address: usize) -> *mut u8 {
    core::ptr::without_provenance_mut(address)
}

#[test]
fn a_home_that_is_set_while_the_owner_returns_holds() {
    loom::model(|| {
        let polled = Arc::new(Polled::new(word(1)));
        let expecting = word(9);
        polled.expect(expecting);
        let setter = {
            let polled = Arc::clone(&polled);
            thread::spawn(move || {
                polled.set_home(word(2), word(9));
                polled.set_home(word(3), word(9));
            })
        };
        polled.returns(expecting);
        setter.join().unwrap();
        // The next poll point, if one is expected.
        polled.returns(expecting);
        assert!(!polled.has_returned(word(3)), "poll points look at an old home");
    });
}
