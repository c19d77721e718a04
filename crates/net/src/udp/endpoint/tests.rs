use super::*;
use crate::Single;
use proptest::prelude::*;
use std::collections::VecDeque;

proptest! {
    #[test]
    fn each_traced_datagram_is_told_from_the_others_when_it_is_taken(
        arrivals in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
    ) {
        let (mut tags, mut queue) = (Tags::<u32>::default(), VecDeque::new());
        for (number, (traced, take)) in (1u32..).zip(arrivals) {
            let request: u32 = number;
            queue.push_back(None);
            if traced {
                let held = queue.iter().flatten().count();
                prop_assert_eq!(tags.push(queue.len(), request), held < MAX_TAGS, "{} are held", held);
                if held < MAX_TAGS {
                    *queue.back_mut().unwrap() = Some(request);
                }
            }
            if take {
                prop_assert_eq!(tags.pop(), queue.pop_front().unwrap());
            }
        }
        for expected in queue {
            prop_assert_eq!(tags.pop(), expected);
        }
        prop_assert_eq!(tags.count, 0);
    }
}

#[test]
fn a_recycled_endpoint_forgets_what_was_traced_in_it() {
    let endpoint = Endpoint::<Single>::new(0);
    let local: SocketAddr = "10.77.0.9:5000".parse().unwrap();
    let (client, request) = ("10.77.0.8:4000".parse().unwrap(), 7u32);
    endpoint.open(local, DatagramRing::new(1 << 12));
    assert_eq!(endpoint.offer(client, local, b"traced", Some(request)), Offer::Queued);
    assert_eq!(endpoint.inbound().traced.count, 1);
    drop(endpoint.close());
    endpoint.open(local, DatagramRing::new(1 << 12));
    assert_eq!(endpoint.offer(client, local, b"another", None), Offer::Queued);
    let mut inbound = endpoint.inbound();
    assert!(inbound.receive(&mut [0; 100], Take::Remove).unwrap().is_some());
    assert_eq!((inbound.traced.count, inbound.traced.pop()), (0, None));
}
