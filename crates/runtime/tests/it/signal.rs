//! Waiting for signals on user threads.

use std::io::ErrorKind;
use tailwater::signal::{SIGHUP, SIGTERM, SIGUSR1, Signals};
use tailwater::thread;
use tailwater_testkit::own_process;

fn raise(signal: i32) {
    // SAFETY: sends a signal to this process, which handles it.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

#[test]
fn a_thread_that_waits_for_a_signal_leaves_the_core_to_others() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .run(|| {
                let mut signals = Signals::new([SIGTERM, SIGHUP]).unwrap();
                let mut others = Signals::new([SIGTERM]).unwrap();
                assert_eq!(signals.try_wait(), None);
                // With one kthread a signal is sent only if the thread that waits is not on it. One
                // at a time: of two that a process is sent, another thread may handle the second
                // first.
                let waiting = thread::spawn(move || (signals.wait(), signals));
                thread::yield_now();
                raise(SIGHUP);
                let (first, mut signals) = waiting.join().unwrap();
                let waiting = thread::spawn(move || signals.wait());
                thread::yield_now();
                raise(SIGTERM);
                assert_eq!([first, waiting.join().unwrap()], [SIGHUP, SIGTERM]);
                assert_eq!(others.wait(), SIGTERM, "each gets the signals that it names");
            })
            .unwrap();
    });
}

#[test]
fn signals_that_cannot_be_waited_for_are_refused() {
    for refused in [tailwater_shm::grant::PREEMPT_SIGNAL, libc::SIGKILL, libc::SIGSEGV, 0, -1, 200] {
        let error = Signals::new([SIGUSR1, refused]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
