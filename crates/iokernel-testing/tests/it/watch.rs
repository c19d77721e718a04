//! The watch over the polling thread: a loop that makes no progress is counted, and the service
//! manager gets no sign of life.

use crate::common::{PATIENCE, config, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater_iokernel::IoKernel;
use tailwater_ports::{Attachment, Context, Inject, Port, PortError};
use tailwater_shm::Cycles;

/// A port that does not return from a poll while `stuck` is set.
#[derive(Clone, Default)]
struct Sticky {
    stuck: Arc<AtomicBool>,
    /// It is in such a poll.
    inside: Arc<AtomicBool>,
}

impl Port for Sticky {
    fn name(&self) -> &'static str {
        "sticky"
    }
    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: None }
    }
    fn start(&mut self, _: &Context) -> Result<(), PortError> {
        Ok(())
    }
    fn poll(&mut self, _: Cycles, _: usize, _: &mut dyn Inject) -> Result<usize, PortError> {
        let deadline = Instant::now() + PATIENCE;
        while self.stuck.load(Ordering::Relaxed) && Instant::now() < deadline {
            self.inside.store(true, Ordering::Relaxed);
            std::hint::spin_loop();
        }
        Ok(0)
    }
    fn transmit(&mut self, _: Cycles, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn a_loop_that_makes_no_progress_is_counted_and_gives_no_sign_of_life() {
    let (port, stop, beats) =
        (Sticky::default(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut iokernel = IoKernel::new(config(), vec![Box::new(port.clone())]).unwrap();
    let counted = Arc::clone(&beats);
    iokernel.set_heartbeat(Duration::from_millis(100), move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let stats = iokernel.stats();
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || iokernel.run(&stopped));
    let beaten = || beats.load(Ordering::Relaxed);
    eventually("signs of life", || beaten() >= 2);
    // On a busy machine the loop may get too little time to count as one that runs.
    let stalled = || stats.polling.stalls.get() + stats.polling.starvations.get();
    let stalls = stalled();
    port.stuck.store(true, Ordering::Relaxed);
    eventually("it is stuck", || port.inside.load(Ordering::Relaxed));
    eventually("the stall is counted", || stalled() > stalls);
    let before = beaten();
    // Time for some more.
    std::thread::sleep(Duration::from_millis(500));
    // One may have been earned before the stall.
    assert!(beaten() <= before + 1, "{} signs of life", beaten() - before);
    port.stuck.store(false, Ordering::Relaxed);
    let after = beaten();
    eventually("signs of life again", || beaten() >= after + 2);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}
