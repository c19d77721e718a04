//! A program without `unsafe` gets one set of ends of a region, and they outlive everything it
//! drops.
#![forbid(unsafe_code)]

use tailwater_shm::layout::{Region, RegionError, RegionSpec};
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::FrameBuffer;
use tailwater_shm::trace::Step;
use tailwater_shm::trace::buffer::Read;

const HZ: u64 = 1_000_000_000;

fn spec() -> RegionSpec {
    RegionSpec::new(2, 1 << 15).unwrap()
}

#[test]
fn ends_outlive_the_region_and_the_file() {
    let (region, mut ours, file) = Region::create("tailwater-test", spec(), HZ).unwrap();
    let (peer, mut theirs) = Region::attach(Mapping::new(&file, "region").unwrap()).unwrap();
    drop((region, peer, file));
    let mut slot = ours[0].ingress.reserve(60).unwrap();
    slot.write(0, &[7; 60]);
    slot.commit(1, 0, 0);
    let mut buffer = FrameBuffer::new();
    let record = theirs[0].ingress.peek().unwrap().unwrap();
    assert_eq!(record.copy_frame(&mut buffer), &[7; 60]);
    record.advance();
    theirs[0].ingress.publish();
    theirs[1].steps.write(1, Step::Received, 2);
    assert!(matches!(ours[1].steps.read(), Read::Step(_)));
}

#[test]
fn a_second_attachment_gets_no_ends() {
    let (_region, _ours, file) = Region::create("tailwater-test", spec(), HZ).unwrap();
    let map = || Mapping::new(&file, "region").unwrap();
    let first = Region::attach(map()).unwrap();
    assert!(matches!(Region::attach(map()), Err(RegionError::AttachedBefore)));
    // Nor once the first has gone: its ends have left their traces in the rings.
    drop(first);
    assert!(matches!(Region::attach(map()), Err(RegionError::AttachedBefore)));
}
