//! The mailbox of a dispatcher's worker, which may have its requests taken back.

use crate::ground::words::worker_mailbox::WorkerMailbox;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// What both sides write into before they hand it over.
type Values = Arc<[UnsafeCell<u32>; 2]>;

/// A mailbox, and its worker, which looks twice.
struct Model {
    mailbox: Arc<WorkerMailbox<u32>>,
    requests: Values,
    answers: Values,
    worker: thread::JoinHandle<Vec<u32>>,
}

impl Model {
    fn begin() -> Self {
        let values = || Values::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let (mailbox, requests, answers) = (Arc::new(WorkerMailbox::new()), values(), values());
        let worker = {
            let (mailbox, requests, answers) =
                (Arc::clone(&mailbox), Arc::clone(&requests), Arc::clone(&answers));
            thread::spawn(move || work(&mailbox, &requests, &answers, 2))
        };
        Self { mailbox, requests, answers, worker }
    }

    /// Writes a request, and gives it to the worker as its `index`th.
    fn give(&self, index: u32, number: u32) {
        // SAFETY: loom checks that the worker does not read it before it is given.
        self.requests[number as usize].with_mut(|request| unsafe { *request = number + 1 });
        self.mailbox.give(index, number).unwrap();
    }
}

/// Takes up to two requests and answers each in `answers`; returns their numbers.
fn work(mailbox: &WorkerMailbox<u32>, requests: &Values, answers: &Values, looks: u32) -> Vec<u32> {
    let mut handled = Vec::new();
    for look in 0..looks {
        let Some(number) = mailbox.take(look.into()) else {
            thread::yield_now();
            continue;
        };
        // SAFETY: loom checks that the dispatcher wrote it before, and that it does not read the
        // answer before the report.
        requests[number as usize].with(|request| assert_eq!(unsafe { *request }, number + 1));
        // SAFETY: as above.
        answers[number as usize].with_mut(|answer| unsafe { *answer = number + 2 });
        mailbox.report(number, 9, false);
        handled.push(number);
    }
    handled
}

#[test]
fn a_request_is_taken_or_taken_back_and_the_rest_keep_their_order() {
    loom::model(|| {
        let model = Model::begin();
        (0..2).for_each(|number| model.give(number, number));
        let mut back = Vec::new();
        for number in [1, 0] {
            match model.mailbox.take_back(number) {
                Some(request) => back.push(request),
                None => break,
            }
        }
        let mut reported = Vec::new();
        while let Some(report) = model.mailbox.collect(reported.len() as u32) {
            let answer = &model.answers[report.number as usize];
            // SAFETY: as in `work`.
            answer.with(|answer| assert_eq!(unsafe { *answer }, report.number + 2));
            reported.push(report.number);
        }
        let handled = model.worker.join().unwrap();
        assert!(handled.starts_with(&reported));
        let mut all = handled.clone();
        all.extend(back.iter().rev());
        // What neither side has is still in the mailbox: the worker looks twice only.
        all.extend((0..2).filter_map(|number| model.mailbox.take_back(number)));
        assert!(handled.is_sorted());
        all.sort_unstable();
        assert_eq!(all, [0, 1], "each request is with one side");
    });
}

#[test]
fn a_place_is_used_again_after_a_request_was_taken_back_or_reported() {
    loom::model(|| {
        let model = Model::begin();
        model.give(0, 0);
        // Another request at the same index if the first came back, else behind it.
        let came_back = model.mailbox.take_back(0).is_some();
        let index = u32::from(!came_back);
        model.give(index, 1);
        let handled = model.worker.join().unwrap();
        let left = model.mailbox.take_back(index).is_some();
        let mut expected = Vec::new();
        expected.extend((!came_back).then_some(0));
        expected.extend((!left).then_some(1));
        assert_eq!(handled, expected);
        let (taken, _) = model.mailbox.progress();
        assert_eq!(taken as usize, handled.len());
    });
}
