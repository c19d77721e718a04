//! Programs that are registered and hostile: none stops the IOKernel or another program.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2, write};
use tailwater_testkit::{has_two_cpus, until};
use tailwater_tests::attack::Target;

#[test]
fn a_doorbell_that_is_emptied_before_the_iokernel_looks_does_not_stop_it() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let intruder = target.admits("intruder");
    let bell = intruder.doorbell();
    // The flag belongs to the open file, which the IOKernel has as well.
    let flags = fcntl_getfl(bell).unwrap();
    fcntl_setfl(bell, flags - OFlags::NONBLOCK).unwrap();
    let sleeps = || target.stats()["loop"]["sleeps"].as_u64().expect("a number");
    for _ in 0..20 {
        for _ in 0..1_000 {
            write(bell, &1u64.to_ne_bytes()).unwrap();
            // Does not wait if the IOKernel was faster. An eventfd has no position: that of the
            // file.
            let _ = preadv2(bell, &mut [IoSliceMut::new(&mut [0; 8])], u64::MAX, ReadWriteFlags::NOWAIT);
        }
        // It ends each sleep by itself, after a tenth of a second.
        let enough = sleeps() + 2;
        until("it wakes and sleeps again", || sleeps() >= enough);
    }
    target.admits("newcomer");
}
