//! Channels against a model under random operation lists, and the order in which threads are
//! served, made deterministic by waiting until each thread is in the queue before the next one is
//! started.

use super::*;
use crate::sync::Mutex;
use crate::sync::test_support::until;
use core::cell::Cell;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// The specification of a channel: a bounded queue and two counts.
struct Model {
    messages: VecDeque<u32>,
    capacity: Option<usize>,
    senders: usize,
    receivers: usize,
}

impl Model {
    fn try_send(&mut self, message: u32) -> Result<(), TrySendError<u32>> {
        if self.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if self.capacity.is_some_and(|capacity| self.messages.len() >= capacity) {
            return Err(TrySendError::Full(message));
        }
        self.messages.push_back(message);
        Ok(())
    }

    fn try_recv(&mut self) -> Result<u32, TryRecvError> {
        let none = if self.senders == 0 { TryRecvError::Disconnected } else { TryRecvError::Empty };
        self.messages.pop_front().ok_or(none)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(u32),
    Receive,
    /// As `Send`, through a select with an operation that cannot be completed.
    SelectSend(u32),
    SelectReceive,
    CloneSender,
    DropSender,
    CloneReceiver,
    DropReceiver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u32>().prop_map(Step::Send),
        6 => Just(Step::Receive),
        3 => any::<u32>().prop_map(Step::SelectSend),
        3 => Just(Step::SelectReceive),
        1 => Just(Step::CloneSender),
        1 => Just(Step::DropSender),
        1 => Just(Step::CloneReceiver),
        1 => Just(Step::DropReceiver),
    ]
}

fn select_send(sender: &Sender<u32>, message: u32, idle: &Receiver<u32>) -> Result<(), TrySendError<u32>> {
    let mut slot = Some(message);
    let select =
        Select::new().recv(idle, |_| unreachable!("no thread sends")).send(sender, &mut slot, |sent| sent);
    match select.try_wait() {
        Some(sent) => sent.map_err(|SendError(message)| TrySendError::Disconnected(message)),
        None => Err(TrySendError::Full(slot.expect("the message comes back"))),
    }
}

fn select_receive(receiver: &Receiver<u32>, idle: &Receiver<u32>) -> Result<u32, TryRecvError> {
    let select =
        Select::new().recv(idle, |_| unreachable!("no thread sends")).recv(receiver, |received| received);
    match select.try_wait() {
        Some(received) => received.map_err(|RecvError| TryRecvError::Disconnected),
        None => Err(TryRecvError::Empty),
    }
}

proptest! {
    #[test]
    fn a_channel_is_a_bounded_queue(
        capacity in prop::option::of(0..5usize),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let (sender, receiver) = with_capacity(capacity);
        let (_idle, idle) = unbounded();
        let (mut senders, mut receivers) = (vec![sender], vec![receiver]);
        let mut model = Model { messages: VecDeque::new(), capacity, senders: 1, receivers: 1 };
        for step in steps {
            match (step, senders.last(), receivers.last()) {
                (Step::Send(n), Some(sender), _) => prop_assert_eq!(sender.try_send(n), model.try_send(n)),
                (Step::SelectSend(n), Some(sender), _) => {
                    prop_assert_eq!(select_send(sender, n, &idle), model.try_send(n));
                }
                (Step::Receive, _, Some(receiver)) => prop_assert_eq!(receiver.try_recv(), model.try_recv()),
                (Step::SelectReceive, _, Some(receiver)) => {
                    prop_assert_eq!(select_receive(receiver, &idle), model.try_recv());
                }
                (Step::CloneSender, Some(sender), _) => senders.push(sender.clone()),
                (Step::CloneReceiver, _, Some(receiver)) => receivers.push(receiver.clone()),
                (Step::DropSender, ..) => drop(senders.pop()),
                (Step::DropReceiver, ..) => drop(receivers.pop()),
                _ => {}
            }
            (model.senders, model.receivers) = (senders.len(), receivers.len());
            if receivers.is_empty() {
                model.messages.clear();
            }
            if let Some(sender) = senders.last() {
                prop_assert_eq!(sender.len(), model.messages.len());
                prop_assert_eq!(sender.is_full(), capacity == Some(model.messages.len()));
                prop_assert_eq!(sender.capacity(), capacity);
            }
            if let Some(channel) =
                senders.last().map(|s| &s.channel).or(receivers.last().map(|r| &r.channel))
            {
                // Without room only the lock shows whether a thread waits at the other end.
                let no_room = capacity == Some(0);
                let readable = no_room || model.senders == 0 || !model.messages.is_empty();
                prop_assert_eq!(channel.look.is_receivable(), readable);
                let full = capacity == Some(model.messages.len());
                prop_assert_eq!(channel.look.is_sendable(), no_room || model.receivers == 0 || !full);
            }
        }
    }
}

#[test]
fn clones_are_of_the_same_channel_and_other_ends_are_not() {
    let (sender, receiver) = super::unbounded::<u8>();
    let (other_sender, other_receiver) = super::unbounded::<u8>();
    assert!(sender.same_channel(&sender.clone()) && !sender.same_channel(&other_sender));
    assert!(receiver.same_channel(&receiver.clone()) && !receiver.same_channel(&other_receiver));
}

#[test]
fn receivers_are_served_in_the_order_they_came() {
    let (sender, receiver) = bounded(1);
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let waiting = receiver.clone();
            let thread = std::thread::spawn(move || waiting.recv().unwrap());
            until(|| receiver.channel.state.lock().receiving.len() == number + 1);
            thread
        })
        .collect();
    (0..4).for_each(|message| sender.try_send(message).expect("each is handed over"));
    assert!(receiver.is_empty());
    let received: Vec<i32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(received, [0, 1, 2, 3]);
}

#[test]
fn senders_are_served_in_the_order_they_came_and_none_overtakes_another() {
    for capacity in [0, 1, 3] {
        let (sender, receiver) = bounded(capacity);
        (0..capacity).for_each(|n| sender.send(n).unwrap());
        let threads: Vec<_> = (capacity..capacity + 4)
            .map(|number| {
                let waiting = sender.clone();
                let thread = std::thread::spawn(move || waiting.send(number).unwrap());
                until(|| sender.channel.state.lock().sending.len() == number - capacity + 1);
                thread
            })
            .collect();
        for expected in 0..capacity + 4 {
            assert_eq!(receiver.try_recv(), Ok(expected));
            if expected < 4 {
                assert_eq!(sender.try_send(99), Err(TrySendError::Full(99)), "the room belongs to a waiter");
            }
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    }
}

#[test]
fn a_select_waits_in_line_with_the_others() {
    let (sender, receiver) = bounded(0);
    let (_other, other) = unbounded::<i32>();
    let order = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (waiting, other, order) = (receiver.clone(), other.clone(), Arc::clone(&order));
            let thread = std::thread::spawn(move || {
                let message = if number % 2 == 0 {
                    waiting.recv()
                } else {
                    Select::new()
                        .recv(&other, |_| unreachable!("no thread sends"))
                        .recv(&waiting, |m| m)
                        .wait()
                };
                order.lock().unwrap().push((number, message.unwrap()));
            });
            until(|| receiver.channel.state.lock().receiving.len() == number + 1);
            thread
        })
        .collect();
    (0..4).for_each(|message| sender.try_send(message).expect("a thread waits"));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(order.lock().unwrap().iter().all(|(number, message)| number == message));
    assert!(
        other.channel.state.lock().receiving.is_empty(),
        "an operation that was not chosen stayed queued"
    );
}

#[test]
fn a_waiting_select_completes_one_operation_and_gives_the_other_message_back() {
    let (first, from_first) = bounded(0);
    let (second, from_second) = bounded(0);
    let thread = {
        let (first, second) = (first.clone(), second.clone());
        std::thread::spawn(move || {
            let (mut a, mut b) = (Some("a"), Some("b"));
            let select = Select::new().send(&first, &mut a, |sent| sent).send(&second, &mut b, |sent| sent);
            select.wait().unwrap();
            (a, b)
        })
    };
    until(|| {
        !second.channel.state.lock().sending.is_empty() && !first.channel.state.lock().sending.is_empty()
    });
    assert_eq!(from_second.try_recv(), Ok("b"));
    // Granted: if its entry is still in the first channel, that entry cannot be granted as well.
    assert_eq!(from_first.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(thread.join().unwrap(), (Some("a"), None));
}

#[test]
fn a_select_on_both_ends_of_one_channel_never_meets_itself() {
    let (sender, receiver) = bounded(0);
    let mut slot = Some(1);
    let select = Select::new().recv(&receiver, Result::ok).send(&sender, &mut slot, |_| None);
    assert_eq!(select.wait_timeout(core::time::Duration::from_millis(2)), None);
    assert_eq!(slot, Some(1));
    let state = sender.channel.state.lock();
    assert!(state.sending.is_empty() && state.receiving.is_empty());
}

/// Waits a thousand times by `select`, which returns the number of one of `N` operations, all of
/// which can be completed at once; each must be chosen often.
fn expect_a_fair_choice<const N: usize>(mut select: impl FnMut() -> usize) {
    let mut counts = [0; N];
    (0..1000).for_each(|_| counts[select()] += 1);
    // A fair choice of one in two strays this far from 500 once in 10^95 runs, of one in six from
    // 167 once in 10^22.
    assert!(counts.iter().all(|&count| count > 360 / N), "{counts:?}");
}

#[test]
fn a_select_does_not_favour_an_operation() {
    let (sender, receiver) = unbounded();
    let (other_sender, other_receiver) = unbounded();
    expect_a_fair_choice::<2>(|| {
        sender.send(0).unwrap();
        other_sender.send(1).unwrap();
        Select::new().recv(&receiver, |m| m).recv(&other_receiver, |m| m).wait().unwrap()
    });
}

/// Selects 4000 times; of the two operations that can be completed, each must be chosen often.
fn expect_no_skew(mut is_first: impl FnMut() -> bool) {
    let first = (0..4000).filter(|_| is_first()).count();
    // A fair choice strays this far from 2000 once in 10^20 runs. One of three, where an idle
    // operation counts for the next one, chooses one of the two 2667 times, give or take 30.
    assert!((1700..=2300).contains(&first), "{first} of 4000");
}

#[test]
fn an_operation_that_is_not_ready_does_not_favour_the_one_after_it() {
    let (_idle, idle) = unbounded::<()>();
    let channels = [unbounded(), unbounded()];
    channels.iter().for_each(|(sender, _)| (0..4000).for_each(|_| sender.send(()).unwrap()));
    let [(_, first), (_, second)] = &channels;
    expect_no_skew(|| {
        let idle_between =
            Select::new().recv(first, |_| true).recv(&idle, |_| unreachable!("no thread sends"));
        idle_between.recv(second, |_| false).wait()
    });
}

/// Ends of a select: with step 1, which the operations of channels without room go through, and
/// with step 2 alone, as if the operation had become ready between the two.
const ENDS: [fn(Select<'_, bool>) -> bool; 2] =
    [|select| select.wait(), |mut select| select.run(true, None).expect("waits until one is complete")];

#[test]
fn an_idle_operation_does_not_favour_another_where_threads_wait_to_send() {
    for end in ENDS {
        std::thread::scope(|scope| {
            let (_idle, idle) = bounded::<()>(0);
            let channels = [bounded(0), bounded(0)];
            let receivers = channels.map(|(sender, receiver)| {
                scope.spawn(move || while sender.send(()).is_ok() {});
                receiver
            });
            let [first, second] = &receivers;
            expect_no_skew(|| {
                until(|| receivers.iter().all(|receiver| !receiver.channel.state.lock().sending.is_empty()));
                let idle_between =
                    Select::new().recv(first, |_| true).recv(&idle, |_| unreachable!("no thread sends"));
                end(idle_between.recv(second, |_| false))
            });
        });
    }
}

#[test]
fn a_closed_channel_is_chosen_as_often_as_one_with_messages() {
    let (sender, receiver) = unbounded();
    let (closed, from_closed) = unbounded::<()>();
    drop(closed);
    expect_a_fair_choice::<2>(|| {
        sender.send(()).unwrap();
        Select::new().recv(&receiver, |_| 0).recv(&from_closed, |_| 1).wait()
    });
    let (full, abandoned) = bounded(1);
    full.send(()).unwrap();
    drop(abandoned);
    expect_a_fair_choice::<2>(|| {
        sender.send(()).unwrap();
        let mut slot = Some(());
        Select::new().recv(&receiver, |_| 0).send(&full, &mut slot, |_| 1).wait()
    });
}

#[test]
fn many_operations_are_all_chosen() {
    let channels: Vec<_> = (0..6).map(|_| unbounded()).collect();
    channels.iter().for_each(|(sender, _)| (0..1000).for_each(|_| sender.send(()).unwrap()));
    expect_a_fair_choice::<6>(|| {
        let all = (0..6)
            .fold(Select::new(), |select, number: usize| select.recv(&channels[number].1, move |_| number));
        all.wait()
    });
}

/// Counts its drops, and is of any size and alignment.
struct Capture<T> {
    drops: Rc<Cell<usize>>,
    _padding: T,
}

impl<T> Drop for Capture<T> {
    fn drop(&mut self) {
        self.drops.set(self.drops.get() + 1);
    }
}

/// Lets functions with such captures end in each way a select has.
fn expect_one_drop_each<T: Copy>(padding: T) {
    let drops = Rc::new(Cell::new(0));
    let capture = || Capture { drops: Rc::clone(&drops), _padding: padding };
    let expect = |count| assert_eq!(drops.replace(0), count);
    let (sender, receiver) = unbounded();
    let (_other, other) = unbounded::<usize>();
    let select = || {
        let (chosen, not_chosen) = (capture(), capture());
        Select::new()
            .recv(&other, move |_| drop(not_chosen))
            .recv(&receiver, move |message| chosen.drops.set(chosen.drops.get() + message.unwrap()))
    };
    drop(select());
    expect(2);
    assert_eq!(select().try_wait(), None);
    expect(2);
    sender.send(100).unwrap();
    select().wait();
    expect(102);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            until(|| !receiver.channel.state.lock().receiving.is_empty());
            sender.send(100).unwrap();
        });
        select().wait();
        waiting.join().unwrap();
    });
    expect(102);
    sender.send(100).unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let (bomb, not_chosen) = (capture(), capture());
        let explode = move |_| {
            let _bomb = bomb;
            panic!("of the user's")
        };
        Select::new().recv(&other, move |_| drop(not_chosen)).recv(&receiver, explode).wait();
    }));
    assert!(panic.is_err());
    expect(2);
}

#[test]
fn functions_of_any_size_are_called_or_dropped_once() {
    #[repr(align(64))]
    #[derive(Clone, Copy)]
    struct Line;
    expect_one_drop_each(());
    expect_one_drop_each(1usize);
    expect_one_drop_each([1usize; 2]);
    expect_one_drop_each([1u8; 100]);
    expect_one_drop_each(Line);
}

#[test]
fn functions_may_capture_cells() {
    fn expect_a_count<const N: usize>() {
        let (sender, receiver) = unbounded();
        let (_other, other) = unbounded::<usize>();
        let select = || {
            let (sums, idle) = ([const { Cell::new(1) }; N], Cell::new(0));
            let add = move |message: Result<usize, RecvError>| {
                sums.iter().for_each(|sum| sum.set(sum.get() + message.unwrap()));
                sums.iter().map(Cell::take).sum::<usize>()
            };
            Select::new().recv(&other, move |_| idle.take()).recv(&receiver, add)
        };
        assert_eq!(select().try_wait(), None);
        sender.send(2).unwrap();
        assert_eq!(select().wait(), 3 * N);
    }
    expect_a_count::<1>();
    expect_a_count::<100>();
}

/// Selects between a receive that is completed, whose function takes a lock, and one that is not,
/// whose function captures the guard of that lock. `idle_before` operations precede them.
fn expect_the_guard_is_dropped_first(
    completed: &Receiver<()>,
    idle_before: usize,
    end: fn(Select<'_, bool>) -> bool,
) {
    let (_idle, idle) = unbounded::<()>();
    let lock = Mutex::new(());
    let held = lock.lock().unwrap();
    let select = (0..idle_before).fold(Select::new(), |select, _| select.recv(&idle, |_| false));
    let select = select.recv(completed, |_| lock.try_lock().is_ok()).recv(&idle, move |_| {
        drop(held);
        false
    });
    assert!(end(select), "a function that is not chosen is alive while the chosen one runs");
}

#[test]
fn the_functions_that_are_not_chosen_are_dropped_first() {
    for (idle_before, end) in [0, 1, 3, 6].into_iter().flat_map(|count| ENDS.map(|end| (count, end))) {
        // Of a select that need not wait.
        let (sender, receiver) = unbounded();
        sender.send(()).unwrap();
        expect_the_guard_is_dropped_first(&receiver, idle_before, end);
        let (sender, receiver) = bounded(0);
        std::thread::scope(|scope| {
            // Of one that finds a thread waiting.
            scope.spawn(|| sender.send(()).unwrap());
            until(|| !receiver.channel.state.lock().sending.is_empty());
            expect_the_guard_is_dropped_first(&receiver, idle_before, end);
            // Of one that waits.
            scope.spawn(|| {
                until(|| !receiver.channel.state.lock().receiving.is_empty());
                sender.send(()).unwrap();
            });
            expect_the_guard_is_dropped_first(&receiver, idle_before, end);
        });
    }
}

/// A thread waits to send or for a second channel to close. A select receives from it, and with the
/// function that is not chosen drops the second channel's last sender, which locks the thread's
/// sleeper.
#[test]
fn a_thread_is_woken_before_functions_that_are_not_chosen_are_dropped() {
    for end in ENDS {
        let (to_first, first) = bounded(0);
        let (last, closing) = unbounded::<()>();
        let (_idle, idle) = unbounded::<()>();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut slot = Some(());
                let send = Select::new().send(&to_first, &mut slot, |sent| sent.is_ok());
                send.recv(&closing, |_| false).wait()
            });
            until(|| {
                !first.channel.state.lock().sending.is_empty()
                    && !closing.channel.state.lock().receiving.is_empty()
            });
            let close = move |_| {
                drop(last);
                false
            };
            assert!(end(Select::new().recv(&first, |message| message.is_ok()).recv(&idle, close)));
            assert!(waiting.join().unwrap());
        });
    }
}
