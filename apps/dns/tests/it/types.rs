//! Types in their own presentation format: the data are those that BIND 9.18 makes of the text.

use crate::common::name;
use domain::base::iana::Rtype;
use tailwater_dns::name::FlatName;
use tailwater_dns::zone::read::parse_zone;

const HEAD: &str = "$TTL 60\n@ SOA ns.example.net. h 1 2 3 4 5\n@ NS ns.example.net.\n";

/// Type and text, the type's number, and the octets that `named-rrchecker -u` prints for them.
const TABLE: &[(&str, u16, &str)] = &[
    ("WKS 192.0.2.1 tcp smtp 80 domain", 11, "c0000201060000004000000400000080"),
    ("AFSDB 1 host", 18, "000104686f7374076578616d706c6500"),
    ("X25 311061700956", 19, "0c333131303631373030393536"),
    ("ISDN \"150862028003217\" 004", 20, "0f31353038363230323830303332313703303034"),
    ("RT 10 relay.example.", 21, "000a0572656c6179076578616d706c6500"),
    (
        "NSAP 0x47.0005.80.005a00.0000.0001.e133.ffffff000161.00",
        22,
        "47000580005a0000000001e133ffffff00016100",
    ),
    ("NSAP-PTR host", 23, "04686f7374076578616d706c6500"),
    (
        "SIG A RSASHA1 2 3600 20300131120000 20300101120000 2143 example. AAECAwQF",
        24,
        "0001050200000e1071040e4070dc8140085f076578616d706c6500000102030405",
    ),
    ("KEY 256 3 RSASHA256 AAEC AwQF", 25, "01000308000102030405"),
    ("PX 10 a b.example.", 26, "000a0161076578616d706c65000162076578616d706c6500"),
    ("GPOS -32.6882 116.8652 10.0", 27, "082d33322e36383832083131362e383635320431302e30"),
    ("LOC 52 22 23.5 N 4 53 32 E -2m 0.5m 10000m 10m", 29, "005116138b3cf20c810cbce0009895b8"),
    ("LOC 1 S 2 W 3", 29, "001216137fc911807f922300009897ac"),
    ("NXT b A MX TXT", 30, "0162076578616d706c6500400180"),
    ("EID 00 01 0a", 31, "00010a"),
    ("NIMLOC 0001ff", 32, "0001ff"),
    ("ATMA +61200000000", 34, "013631323030303030303030"),
    ("ATMA 39.246f00.0a", 34, "0039246f000a"),
    ("KX 10 @", 36, "000a076578616d706c6500"),
    ("CERT PKIX 65535 RSASHA256 AAECAwQF", 37, "0001ffff08000102030405"),
    ("A6 64 ::1:2 a.example.", 38, "4000000000000100020161076578616d706c6500"),
    ("A6 0 2001:db8::1", 38, "0020010db8000000000000000000000001"),
    ("SINK 1 0 0 AAECAwQF", 40, "010000000102030405"),
    (
        "APL 1:192.0.2.0/24 !1:192.0.2.64/28 2:2001:db8::/32",
        42,
        "00011803c0000200011c84c00002400002200420010db8",
    ),
    ("DHCID AAECAwQFBgc=", 49, "0001020304050607"),
    ("SMIMEA 3 1 1 0001 0203", 53, "03010100010203"),
    (
        "HIP 2 200100107b1a74df365639cc39f1d578 AAECAwQFBgc= rvs.example. rvs2",
        55,
        "10020008200100107b1a74df365639cc39f1d578000102030405060703727673076578616d706c65000472767332076578616d706c6500",
    ),
    ("NINFO \"zone status\" two", 56, "0b7a6f6e65207374617475730374776f"),
    ("RKEY 0 3 8 AAECAwQF", 57, "00000308000102030405"),
    ("TALINK a b", 58, "0161076578616d706c65000162076578616d706c6500"),
    (
        "CSYNC 66 3 A NS AAAA TYPE1234",
        62,
        "000000420003000460000008041b000000000000000000000000000000000000000000000000000020",
    ),
    ("SPF \"v=spf1 -all\" \"\\\"x\\\\\\032\"", 99, "0b763d73706631202d616c6c0422785c20"),
    ("NID 10 0014:4fff:ff20:ee64", 104, "000a00144fffff20ee64"),
    ("L32 10 192.0.2.1", 105, "000ac0000201"),
    ("L64 10 2001:0db8:1140:1000", 106, "000a20010db811401000"),
    ("LP 10 l64.example.", 107, "000a036c3634076578616d706c6500"),
    ("EUI48 00-00-5e-00-53-2a", 108, "00005e00532a"),
    ("EUI64 00-00-5e-ef-10-00-00-2a", 109, "00005eef1000002a"),
    ("URI 10 1 \"ftp://ftp.example/\\\"x\\\"\"", 256, "000a00016674703a2f2f6674702e6578616d706c652f227822"),
    ("AVC \"app-name:a\" b", 258, "0a6170702d6e616d653a610162"),
    ("DOA 0 1 2 \"text/html\" AAECAwQF", 259, "00000000000000010209746578742f68746d6c000102030405"),
    ("AMTRELAY 10 1 3 relay", 260, "0a830572656c6179076578616d706c6500"),
    ("AMTRELAY 10 0 1 192.0.2.1", 260, "0a01c0000201"),
    ("AMTRELAY 10 1 2 2001:db8::1", 260, "0a8220010db8000000000000000000000001"),
    ("AMTRELAY 10 0 0 .", 260, "0a00"),
    (
        "TA 60485 RSASHA1 1 2bb183af5f22588179a53b0a98631fad1a292118",
        32768,
        "ec4505012bb183af5f22588179a53b0a98631fad1a292118",
    ),
    (
        "DLV 60485 5 2 2bb183af5f22588179a53b0a98631fad1a29211800000000000000000000aaaa",
        32769,
        "ec4505022bb183af5f22588179a53b0a98631fad1a29211800000000000000000000aaaa",
    ),
    ("RESINFO qnamemin exterr=15-17", 261, "08716e616d656d696e0c6578746572723d31352d3137"),
    ("MINFO @ a", 14, "076578616d706c65000161076578616d706c6500"),
    ("RP @ @", 17, "076578616d706c6500076578616d706c6500"),
    ("SRV 1 2 3 @", 33, "000100020003076578616d706c6500"),
    ("TYPE33 1 2 3 @", 33, "000100020003076578616d706c6500"),
    ("NAPTR 1 2 \"s\" \"x\" \"\" @", 35, "000100020173017800076578616d706c6500"),
    ("DNAME @", 39, "076578616d706c6500"),
    ("IPSECKEY 10 3 2 @ AAEC", 45, "0a0302076578616d706c6500000102"),
    ("NSEC @ A", 47, "076578616d706c6500000140"),
    (
        "DS 12345 13 SHA-256 000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f",
        43,
        "30390d02000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f",
    ),
    (
        "CDS 1 RSASHA256 sha1 000102030405060708090a0b0c0d0e0f10111213",
        59,
        "00010801000102030405060708090a0b0c0d0e0f10111213",
    ),
    (
        "DLV 1 8 SHA1 000102030405060708090a0b0c0d0e0f10111213",
        32769,
        "00010801000102030405060708090a0b0c0d0e0f10111213",
    ),
    // An escaped comma and backslash in a list, within an escaped text (RFC 9460, appendix D.2).
    (
        r#"SVCB 16 foo alpn="f\\\\oo\\,bar,h2""#,
        64,
        "001003666f6f076578616d706c65000001000c08665c6f6f2c626172026832",
    ),
    (
        "SVCB 1 @ mandatory=ipv4hint,alpn port=53 ipv6hint=2001:db8::1,::1 ipv4hint=192.0.2.1 alpn=h2 \
         key667=\"hello\\210qoo\" no-default-alpn",
        64,
        "0001076578616d706c65000000000400010004000100030268320002000000030002003500040004c00002010006002020010db800000000000000000000000100000000000000000000000000000001029b000968656c6c6fd2716f6f",
    ),
    ("SVCB 1 . key65333=ex1 ech=AAEC key1=\\002h2", 64, "0001000001000302683200050003000102ff350003657831"),
    (
        "SVCB 1 . ( dohpath=\"/dns-query{?dns}\"\n alpn=\"h2,h3\" )",
        64,
        "00010000010006026832026833000700102f646e732d71756572797b3f646e737d",
    ),
    // Not of BIND, which does not know these two keys: RFC 9540 and the TLS groups' numbers.
    ("SVCB 1 . ohttp tls-supported-groups=29,23", 64, "0001000008000000090004001d0017"),
    ("HTTPS 0 web", 65, "000003776562076578616d706c6500"),
    ("DSYNC CDS NOTIFY 53 ns1", 66, "003b010035036e7331076578616d706c6500"),
    ("DSYNC TYPE1234 2 53 @", 66, "04d2020035076578616d706c6500"),
    ("HHIT AAEC", 67, "000102"),
    ("BRID AAEC", 68, "000102"),
    // Octets above 127, as Unix programs write them.
    ("TXT \"@\" caf\u{e9} \\\u{e9} ; \u{e9}", 16, "014005636166c3a902c3a9"),
    ("HINFO \u{e9} \"\u{e9} x\"", 13, "02c3a904c3a92078"),
    ("CAA 0 issue \"\u{e9}\"", 257, "00056973737565c3a9"),
    ("AFSDB 1 \u{e9}", 18, "000102c3a9076578616d706c6500"),
];

#[test]
fn data_in_the_format_of_their_type_are_those_of_bind() {
    for (text, number, octets) in TABLE {
        let zone = parse_zone(&name("example."), &format!("{HEAD}x {text}\n"));
        let zone = zone.unwrap_or_else(|problems| panic!("{text}: {problems:#?}"));
        let owner = FlatName::new(&name("x.example."));
        let rrset = zone.glue(&owner).and_then(|node| node.rrset(Rtype::from_int(*number)));
        let data = rrset.unwrap_or_else(|| panic!("{text}: no such records")).data[0].octets();
        let shown: String = data.iter().map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(shown, *octets, "{text}");
    }
}

#[test]
fn numbers_of_types_and_octets_do_instead_of_names_and_formats() {
    for text in
        ["x TYPE36 10 @", "x KX \\# 11 000a 076578616d706c6500", "x TYPE36 \\# 11 000a076578616d706c6500"]
    {
        let zone = parse_zone(&name("example."), &format!("{HEAD}{text}\n"));
        let zone = zone.unwrap_or_else(|problems| panic!("{text}: {problems:#?}"));
        let owner = FlatName::new(&name("x.example."));
        let rrset = zone.glue(&owner).and_then(|node| node.rrset(Rtype::KX)).expect("the record");
        assert_eq!(rrset.data[0].octets(), b"\0\x0a\x07example\0", "{text}");
    }
}

#[test]
fn data_that_are_not_of_their_type_are_errors() {
    for text in [
        "AFSDB host",
        "AFSDB 1 host more",
        "AFSDB 1 a..b",
        "X25 a\\999",
        "NSAP 0x4",
        "NSAP 0x",
        "KEY 256 3 8 AAEC!",
        "LOC 91 N 0 E 0m",
        "LOC 90 0 0.001 N 0 E 0m",
        "LOC 1 60 N 0 E 0m",
        "LOC 1 2 3 4 N 0 E 0m",
        "LOC 1 N 0 E",
        "LOC 1 N 0 E 0.001m",
        "LOC 1 N 0 E -100001m",
        "LOC 1 N 0 E 0m 99999999999m",
        "NXT a TYPE128",
        "ATMA +12a",
        "A6 129 ::",
        "A6 64 host.",
        "APL 1:192.0.2.0/33",
        "APL 3:192.0.2.0/24",
        "HIP 2 0 AA==",
        "CSYNC 1 1 NONE",
        "NID 1 1:2:3",
        "NID 1 12345:2:3:4",
        "EUI48 00-00-5e-00-53",
        "EUI48 000-00-5e-00-53-2a",
        "AMTRELAY 1 2 1 192.0.2.1",
        "AMTRELAY 1 0 4 .",
        "AMTRELAY 1 0 0 host",
        "WKS 192.0.2.1 none 1",
        "WKS 192.0.2.1 6 65536",
        "SPF",
        "DSYNC CDS 1 53",
        "DSYNC CDS SEND 53 ns",
        "SVCB 1 . alpn=h2 alpn=h3",
        "SVCB 1 . alpn=",
        "SVCB 1 . alpn=h2,",
        "SVCB 1 . alpn=h\\\\2\\",
        "SVCB 1 . ALPN=h2",
        "SVCB 1 . mandatory=alpn",
        "SVCB 1 . mandatory=alpn,alpn alpn=h2",
        "SVCB 1 . mandatory=mandatory",
        "SVCB 1 . no-default-alpn",
        "SVCB 1 . alpn=h2 no-default-alpn=1",
        "SVCB 1 . port",
        "SVCB 1 . port=65536",
        "SVCB 1 . key01=x",
        "SVCB 1 . key65536=x",
        "SVCB 1 . ipv4hint=192.0.2.1,",
        "SVCB 1 . ipv4hint=::1",
        "SVCB 1 . ech=!",
        "SVCB 1",
    ] {
        let zone = parse_zone(&name("example."), &format!("{HEAD}x {text}\n"));
        let problems = zone.expect_err(text);
        assert!(problems[0].to_string().starts_with("-:4: not understood: "), "{text}: {problems:#?}");
    }
}
