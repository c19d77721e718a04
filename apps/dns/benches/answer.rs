//! The cost of an answer in ns, without sockets: one core, warm caches, a zone of 100,000 names.
//!
//! * `address`: one A record; `alias`: through a CNAME record; `missing`: NXDOMAIN with SOA;
//!   `wildcard`: synthesised from one; `referral`: two name servers with glue; `mail`: two MX
//!   records with addresses; `refused`: a zone that is not served.
//!
//! Queries have an OPT record, as those of resolvers do.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use domain::base::Name;
use tailwater_dns::answer::{MAX_UDP, Transport, respond};
use tailwater_dns::catalog::Catalog;
use tailwater_dns::name::store;
use tailwater_dns::zone::read::parse_zone;

/// Names with addresses.
const HOSTS: usize = 100_000;

fn zones() -> Catalog {
    let mut text = "$TTL 300\n@ SOA ns1 h 1 2 3 4 60\n NS ns1\n NS ns2\n MX 1 h1\n MX 2 h2\nns1 A 192.0.2.1\n\
        ns2 A 192.0.2.2\nwww CNAME h7\n*.w A 192.0.2.3\nsub NS a.sub\nsub NS b.sub\na.sub A 192.0.2.4\nb.sub A 192.0.2.5\n"
        .to_owned();
    for i in 0..HOSTS {
        text += &format!("h{i} A 10.{}.{}.{}\n", i >> 16, i >> 8 & 255, i & 255);
    }
    let origin = store(&Name::vec_from_str("example.com.").expect("a name"));
    Catalog::new([Arc::new(parse_zone(&origin, &text).expect("a zone"))])
}

fn query(name: &str, rtype: u8) -> Vec<u8> {
    let name = Name::vec_from_str(name).expect("a name");
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    message.extend(name.as_slice());
    message.extend([0, rtype, 0, 1, 0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    message
}

fn answers(c: &mut Criterion) {
    let zones = zones();
    let mut group = c.benchmark_group("dns");
    for (what, name, rtype) in [
        ("address", "h7.example.com.", 1),
        ("alias", "www.example.com.", 1),
        ("missing", "no.example.com.", 1),
        ("wildcard", "x.w.example.com.", 1),
        ("referral", "x.sub.example.com.", 1),
        ("mail", "example.com.", 15),
        ("refused", "example.org.", 1),
    ] {
        let (query, mut out) = (query(name, rtype), Vec::with_capacity(usize::from(MAX_UDP)));
        group.bench_function(what, |b| {
            b.iter(|| respond(black_box(&zones), black_box(&query), Transport::Udp, &mut out));
        });
    }
    // A different name each time: caches are as cold as a zone of this size makes them.
    let queries: Vec<_> =
        (0..HOSTS).map(|i| query(&format!("h{}.example.com.", i * 7919 % HOSTS), 1)).collect();
    let (mut next, mut out) = (0, Vec::with_capacity(usize::from(MAX_UDP)));
    group.bench_function("address of 100,000", |b| {
        b.iter(|| {
            next = (next + 1) % HOSTS;
            respond(black_box(&zones), &queries[next], Transport::Udp, &mut out)
        });
    });
    group.finish();
}

criterion_group!(benches, answers);
criterion_main!(benches);
