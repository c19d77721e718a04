//! The examples of the standards, as tables.

use crate::common::{ask, catalog};

/// RFC 1034, section 6.1, figure of the root server's data.
const ROOT: &str = "
.       86400 IN      SOA     SRI-NIC.ARPA. HOSTMASTER.SRI-NIC.ARPA. (
                        870611          ;serial
                        1800            ;refresh every 30 min
                        300             ;retry every 5 min
                        604800          ;expire after a week
                        86400)          ;minimum of a day
                NS      A.ISI.EDU.
                NS      C.ISI.EDU.
                NS      SRI-NIC.ARPA.
MIL.    86400   NS      SRI-NIC.ARPA.
        86400   NS      A.ISI.EDU.
EDU.    86400   NS      SRI-NIC.ARPA.
        86400   NS      C.ISI.EDU.
SRI-NIC.ARPA.   A       26.0.0.73
                A       10.0.0.51
                MX      0 SRI-NIC.ARPA.
                HINFO   DEC-2060 TOPS20
ACC.ARPA.       A       26.6.0.65
                HINFO   PDP-11/70 UNIX
                MX      10 ACC.ARPA.
USC-ISIC.ARPA.  CNAME   C.ISI.EDU.
73.0.0.26.IN-ADDR.ARPA.  PTR    SRI-NIC.ARPA.
65.0.6.26.IN-ADDR.ARPA.  PTR    ACC.ARPA.
A.ISI.EDU. 86400 A      26.3.0.103
C.ISI.EDU. 86400 A      10.0.0.52
";

/// The root zone's SOA record as a negative answer has it.
const ROOT_SOA: &str = "ns . 86400 SOA SRI-NIC.ARPA. HOSTMASTER.SRI-NIC.ARPA. 870611 1800 300 604800 86400";

#[test]
fn rfc_1034_section_6_2() {
    let zones = catalog(&[(".", ROOT)]);
    let table: &[(&str, &str, &[&str])] = &[
        (
            "SRI-NIC.ARPA.",
            "A",
            &["NOERROR aa", "an SRI-NIC.ARPA. 86400 A 26.0.0.73", "an SRI-NIC.ARPA. 86400 A 10.0.0.51"],
        ),
        // 6.2.2 asks for everything; since RFC 8482 one set is enough.
        (
            "SRI-NIC.ARPA.",
            "ANY",
            &["NOERROR aa", "an SRI-NIC.ARPA. 86400 A 26.0.0.73", "an SRI-NIC.ARPA. 86400 A 10.0.0.51"],
        ),
        (
            "SRI-NIC.ARPA.",
            "MX",
            &[
                "NOERROR aa",
                "an SRI-NIC.ARPA. 86400 MX 0 SRI-NIC.ARPA.",
                "ar SRI-NIC.ARPA. 86400 A 26.0.0.73",
                "ar SRI-NIC.ARPA. 86400 A 10.0.0.51",
            ],
        ),
        // 6.2.4 and 6.2.5, with the SOA record that RFC 2308 adds.
        ("SRI-NIC.ARPA.", "NS", &["NOERROR aa", ROOT_SOA]),
        ("SIR-NIC.ARPA.", "A", &["NXDOMAIN aa", ROOT_SOA]),
        (
            "BRL.MIL.",
            "A",
            &[
                "NOERROR",
                "ns MIL. 86400 NS SRI-NIC.ARPA.",
                "ns MIL. 86400 NS A.ISI.EDU.",
                "ar SRI-NIC.ARPA. 86400 A 26.0.0.73",
                "ar SRI-NIC.ARPA. 86400 A 10.0.0.51",
                "ar A.ISI.EDU. 86400 A 26.3.0.103",
            ],
        ),
        // 6.2.7 from a server without the zone EDU.
        (
            "USC-ISIC.ARPA.",
            "A",
            &[
                "NOERROR aa",
                "an USC-ISIC.ARPA. 86400 CNAME C.ISI.EDU.",
                "ns EDU. 86400 NS SRI-NIC.ARPA.",
                "ns EDU. 86400 NS C.ISI.EDU.",
                "ar C.ISI.EDU. 86400 A 10.0.0.52",
                "ar SRI-NIC.ARPA. 86400 A 26.0.0.73",
                "ar SRI-NIC.ARPA. 86400 A 10.0.0.51",
            ],
        ),
        (
            "USC-ISIC.ARPA.",
            "CNAME",
            &[
                "NOERROR aa",
                "an USC-ISIC.ARPA. 86400 CNAME C.ISI.EDU.",
                "ns . 86400 NS A.ISI.EDU.",
                "ns . 86400 NS C.ISI.EDU.",
                "ns . 86400 NS SRI-NIC.ARPA.",
                "ar A.ISI.EDU. 86400 A 26.3.0.103",
                "ar C.ISI.EDU. 86400 A 10.0.0.52",
                "ar SRI-NIC.ARPA. 86400 A 26.0.0.73",
                "ar SRI-NIC.ARPA. 86400 A 10.0.0.51",
            ],
        ),
        // 6.3.2.
        ("65.0.6.26.IN-ADDR.ARPA.", "PTR", &["NOERROR aa", "an 65.0.6.26.IN-ADDR.ARPA. 86400 PTR ACC.ARPA."]),
        // Empty non-terminals exist.
        ("IN-ADDR.ARPA.", "PTR", &["NOERROR aa", ROOT_SOA]),
        ("6.26.IN-ADDR.ARPA.", "A", &["NOERROR aa", ROOT_SOA]),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), *wanted, "{question} {rtype}");
    }
}

/// RFC 4592, section 2.2.1.
const WILDCARDS: &str = r#"
$ORIGIN example.
example.                 3600 IN  SOA   ns.example.com. h.example.com. 1 2 3 4 60
example.                 3600     NS    ns.example.com.
example.                 3600     NS    ns.example.net.
*.example.               3600     TXT   "this is a wildcard"
*.example.               3600     MX    10 host1.example.
sub.*.example.           3600     TXT   "this is not a wildcard"
host1.example.           3600     A     192.0.2.1
_ssh._tcp.host1.example. 3600     SRV   0 0 22 host1.example.
_ssh._tcp.host2.example. 3600     SRV   0 0 22 host2.example.com.
subdel.example.          3600     NS    ns.example.com.
subdel.example.          3600     NS    ns.example.net.
"#;

#[test]
fn rfc_4592_section_2_2_1() {
    let zones = catalog(&[("example.", WILDCARDS)]);
    let soa = "ns example. 60 SOA ns.example.com. h.example.com. 1 2 3 4 60";
    let host1 = "ar host1.example. 3600 A 192.0.2.1";
    let table: &[(&str, &str, &[&str])] = &[
        ("host3.example.", "MX", &["NOERROR aa", "an host3.example. 3600 MX 10 host1.example.", host1]),
        ("host3.example.", "A", &["NOERROR aa", soa]),
        ("foo.bar.example.", "TXT", &["NOERROR aa", r#"an foo.bar.example. 3600 TXT "this is a wildcard""#]),
        ("host1.example.", "MX", &["NOERROR aa", soa]),
        ("sub.*.example.", "MX", &["NOERROR aa", soa]),
        ("_telnet._tcp.host1.example.", "SRV", &["NXDOMAIN aa", soa]),
        (
            "host.subdel.example.",
            "A",
            &[
                "NOERROR",
                "ns subdel.example. 3600 NS ns.example.com.",
                "ns subdel.example. 3600 NS ns.example.net.",
            ],
        ),
        ("ghost.*.example.", "MX", &["NXDOMAIN aa", soa]),
        // A query for the wildcard's own name, and one whose closest encloser is an empty
        // non-terminal.
        ("*.example.", "MX", &["NOERROR aa", "an *.example. 3600 MX 10 host1.example.", host1]),
        ("_tcp.host2.example.", "TXT", &["NOERROR aa", soa]),
        ("x._tcp.host2.example.", "TXT", &["NXDOMAIN aa", soa]),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), *wanted, "{question} {rtype}");
    }
}

/// RFC 2308, sections 2.1 and 2.2, with the names of its examples.
const NEGATIVE: &str = "
$TTL 86400
XX.             SOA NS1.XX. HOSTMASTER.NS1.XX. 1997102000 1 2 3 1200
XX.             NS  NS1.XX.
XX.             NS  NS2.XX.
NS1.XX.         A   127.0.0.2
NS2.XX.         A   127.0.0.3
AN.XX.          CNAME TRIPPLE.XX.
ANOTHER.XX.     MX  0 NS1.XX.
ALIAS.XX.       CNAME ANOTHER.XX.
AWAY.XX.        CNAME www.example.
";

#[test]
fn rfc_2308_negative_answers() {
    let zones = catalog(&[("XX.", NEGATIVE)]);
    let soa = "ns XX. 1200 SOA NS1.XX. HOSTMASTER.NS1.XX. 1997102000 1 2 3 1200";
    let table: &[(&str, &str, &[&str])] = &[
        // 2.1: name error, the code being that of the end of the chain (RFC 6604, section 3).
        ("AN.XX.", "A", &["NXDOMAIN aa", "an AN.XX. 86400 CNAME TRIPPLE.XX.", soa]),
        ("TRIPPLE.XX.", "A", &["NXDOMAIN aa", soa]),
        // 2.2: no data.
        ("ANOTHER.XX.", "A", &["NOERROR aa", soa]),
        ("ALIAS.XX.", "A", &["NOERROR aa", "an ALIAS.XX. 86400 CNAME ANOTHER.XX.", soa]),
        // The target is in another zone.
        ("AWAY.XX.", "A", &["NOERROR aa", "an AWAY.XX. 86400 CNAME www.example."]),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), *wanted, "{question} {rtype}");
    }
}
