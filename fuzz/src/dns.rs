//! The DNS server: arbitrary queries and arbitrary master files.

use domain::base::{Message, Name};
use domain::rdata::AllRecordData;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use tailwater_dns::answer::{MAX_UDP, MIN_UDP, Transport, Verdict, respond};
use tailwater_dns::catalog::Catalog;
use tailwater_dns::name::{StoredName, store};
use tailwater_dns::zone::Zone;
use tailwater_dns::zone::read::read_zone;

/// A zone with one of everything.
pub(crate) const ZONE: &str = r#"$TTL 300
@        SOA ns1 hostmaster 7 3600 600 86400 60
         NS  ns1
         MX  5 mail
ns1      A   192.0.2.1
mail     AAAA 2001:db8::1
www      CNAME ns1
loop     CNAME loop
*.wild   TXT "several" "strings"
sub      NS  ns.sub
ns.sub   A   192.0.2.53
_sip._udp ( SRV 1 2 5060
    mail ) ; in two lines
below    DNAME ns1
*.star   CNAME *.star
wild     CERT PKIX 1 RSASHA256 AAEC
odd      TYPE65280 \# 4 0a0b0c0d
"#;

fn origin() -> StoredName {
    // `example.` on the wire.
    store(&Name::from_octets(*b"\x07example\0").expect("a name"))
}

fn read(text: &[u8]) -> Option<Zone> {
    // A file that includes another includes itself.
    read_zone(&origin(), Path::new("zone"), &mut |_| Ok(text.to_vec())).ok()
}

/// Runs a message through the server: the first octet chooses UDP or TCP, the rest is the message.
///
/// # Panics
/// If the answer is malformed or inconsistent.
pub fn dns_query(data: &[u8]) {
    static ZONES: LazyLock<Catalog> =
        LazyLock::new(|| Catalog::new([Arc::new(read(ZONE.as_bytes()).expect("the zone is right"))]));
    let Some((first, query)) = data.split_first() else { return };
    let transport = if first & 1 == 0 { Transport::Udp } else { Transport::Tcp };
    let (mut out, mut again) = (Vec::new(), vec![0xff; 100]);
    let verdict = respond(&ZONES, query, transport, &mut out);
    assert_eq!(respond(&ZONES, query, transport, &mut again), verdict);
    if verdict == Verdict::Ignore {
        assert!(query.len() < 12 || query[2] & 0x80 != 0, "a query without an answer");
        return;
    }
    assert_eq!(out, again, "the same question, another answer");
    assert!(out.len() >= 12 && out[..2] == query[..2] && out[2] & 0x80 != 0, "an answer to the query");
    let max = match transport {
        Transport::Udp => MAX_UDP,
        Transport::Tcp => u16::MAX,
    };
    assert!(out.len() <= usize::from(max));
    let answer = Message::from_slice(&out).expect("an answer");
    if transport == Transport::Udp && answer.opt().is_none() {
        assert!(out.len() <= usize::from(MIN_UDP));
    }
    if answer.header_counts().qdcount() == 1 {
        let asked =
            Message::from_slice(query).expect("it was answered").sole_question().expect("it was repeated");
        assert_eq!(answer.sole_question().expect("well-formed"), asked);
    }
    let mut records = 0;
    for record in answer.iter() {
        let (record, _) = record.expect("well-formed");
        record.to_any_record::<AllRecordData<_, _>>().expect("well-formed");
        records += 1;
    }
    let counts = answer.header_counts();
    assert_eq!(records, counts.ancount() + counts.nscount() + counts.arcount());
}

/// Reads a master file: a zone or problems, in bounded time; a zone has its required records, and
/// every name of it is found.
///
/// # Panics
/// If a property does not hold.
pub fn dns_zone(data: &[u8]) {
    let Some(zone) = read(data) else { return };
    assert!(zone.soa().is_some());
    for node in zone.nodes() {
        let name = tailwater_dns::name::FlatName::new(node.name());
        let found = zone.glue(&name).expect("the name is in the zone");
        assert!(core::ptr::eq(found, node));
    }
}
