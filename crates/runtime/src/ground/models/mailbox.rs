//! The mailbox of a kthread that polls.

use crate::ground::words::mailbox::{MIN_TOKEN, Mailbox};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

#[test]
fn an_offered_token_arrives_once_or_stays_with_the_thread_that_offered_it() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::new());
        let values = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let offering = [0, 1].map(|me| {
            let (mailbox, values) = (Arc::clone(&mailbox), Arc::clone(&values));
            thread::spawn(move || {
                // SAFETY: loom checks that the owner does not read before the token is handed over.
                values[me].with_mut(|value| unsafe { *value = 7 });
                mailbox.offer(MIN_TOKEN + me as u64)
            })
        });
        let mut came = Vec::new();
        for _ in 0..2 {
            mailbox.open();
            if let Some(token) = mailbox.close() {
                let who = (token - MIN_TOKEN) as usize;
                // SAFETY: as above.
                assert_eq!(values[who].with(|value| unsafe { *value }), 7);
                came.push(who);
            }
        }
        assert_eq!(mailbox.peek(), None, "a closed mailbox holds nothing");
        let accepted: Vec<usize> = offering
            .into_iter()
            .enumerate()
            .filter_map(|(who, offer)| offer.join().unwrap().then_some(who))
            .collect();
        came.sort_unstable();
        assert_eq!(came, accepted);
    });
}
