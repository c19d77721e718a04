//! Answering allocates nothing once the buffer has its size. In a file of its own, because a
//! process has one allocator.

#[path = "it/common/mod.rs"]
mod common;

use common::generate::{Generated, Signed};
use common::{catalog, edns_query, query, secure_query};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tailwater_dns::answer::{MAX_UDP, Transport, respond};

struct Counting;

thread_local! {
    /// Of this thread: the test harness allocates on its own at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Constant and without a destructor, so access neither allocates nor fails.
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn answering_allocates_nothing() {
    let mut text =
        "$TTL 60\n@ SOA ns h 1 2 3 4 5\n NS ns\nns A 192.0.2.1\nwww CNAME ns\n*.w TXT t\n".to_owned();
    for i in 0..100 {
        text += &format!("big A 10.0.0.{i}\nsub NS ns{i}.sub\nns{i}.sub A 10.1.0.{i}\n");
    }
    let signed = |origin, signed| Generated::new(origin, 3).text(signed);
    let (names, hashes) = (signed("n.", Signed::Nsec), signed("h.", Signed::Nsec3 { opt_out: true }));
    let zones = catalog(&[("example.", &text), ("n.", &names), ("h.", &hashes)]);
    let names = [
        "example.",
        "ns.example.",
        "www.example.",
        "x.w.example.",
        "no.example.",
        "big.example.",
        "a.sub.example.",
    ];
    let mut queries: Vec<_> = names
        .iter()
        .flat_map(|name| ["A", "TXT", "NS", "SOA", "ANY", "AXFR", "DS"].map(|rtype| (name, rtype)))
        .flat_map(|(name, rtype)| [query(name, rtype), edns_query(name, rtype, 4096)])
        .collect();
    for origin in ["n.", "h."] {
        for question in Generated::new(origin, 3).questions(5, 20) {
            queries.extend(["A", "DS", "RRSIG"].map(|rtype| secure_query(&question, rtype)));
        }
    }
    queries.push(query("elsewhere.", "A"));
    queries.push(b"not a query at all".to_vec());
    let mut out = Vec::with_capacity(usize::from(MAX_UDP));
    let before = ALLOCATIONS.get();
    let mut octets = 0;
    for _ in 0..10 {
        for query in &queries {
            respond(&zones, query, Transport::Udp, &mut out);
            octets += out.len();
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations for {} queries", queries.len() * 10);
    assert!(octets > queries.len() * 200);
}
