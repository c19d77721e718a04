//! Zones for comparisons: random names and records, unsigned, or with a chain of NSEC or NSEC3
//! records.
//!
//! Owns the records a signer adds (RFC 4035, section 2; RFC 5155, section 7.1). The signatures are
//! random octets: no name server verifies them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tailwater_dns::zone::hash::sha1;

/// How a zone proves what it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signed {
    /// Not at all.
    No,
    /// By names.
    Nsec,
    /// By hashes of names.
    Nsec3 {
        /// Delegations that are not signed are left out.
        opt_out: bool,
    },
}

/// Labels of a name below the zone's, the one next to it first: the order of this type is the
/// canonical one (RFC 4034, section 6.1).
type Labels = Vec<&'static str>;

/// Types and data of a name; data that begin with `=` are a name within the zone.
type Sets = BTreeMap<&'static str, Vec<String>>;

const LABELS: [&str; 5] = ["*", "a", "b", "c", "d"];

/// One record of every type that all servers read in its own syntax.
const TYPES: [(&str, &str); 31] = [
    ("AAAA", "2001:db8::1"),
    ("AFSDB", "1 host.example."),
    ("APL", "1:192.0.2.0/24 !2:2001:db8::/32"),
    ("CAA", "0 issue \"ca.example\""),
    ("CDNSKEY", "257 3 13 AAECAwQFBgc="),
    ("CDS", "1 8 1 000102030405060708090a0b0c0d0e0f10111213"),
    ("CERT", "PKIX 1 13 AAECAw=="),
    ("CSYNC", "1 3 A NS AAAA"),
    ("DHCID", "AAECAwQFBgc="),
    ("EUI48", "00-01-02-0a-0b-0c"),
    ("EUI64", "00-01-02-03-0a-0b-0c-0d"),
    ("HINFO", "\"a cpu\" os"),
    ("HTTPS", "1 . alpn=\"h2,h3\" ipv4hint=192.0.2.1"),
    ("IPSECKEY", "1 1 2 192.0.2.9 AAECAw=="),
    ("KX", "1 host.example."),
    ("L32", "1 192.0.2.7"),
    ("L64", "1 2001:0db8:0000:0007"),
    ("LOC", "52 22 23.5 N 4 53 32 E -2m 0.5m 10000m 10m"),
    ("LP", "1 host.example."),
    ("NAPTR", "1 2 \"s\" \"x\" \"\" host.example."),
    ("NID", "1 0014:4fff:ff20:ee64"),
    ("OPENPGPKEY", "AAECAw=="),
    ("PTR", "host.example."),
    ("RP", "mail.example. text.example."),
    ("RT", "1 host.example."),
    ("SMIMEA", "3 1 1 00010203"),
    ("SPF", "\"v=spf1\""),
    ("SVCB", "16 @ key667=\"hello\\210qoo\" port=53 mandatory=port"),
    ("SSHFP", "1 1 000102030405060708090a0b0c0d0e0f10111213"),
    ("TLSA", "3 1 1 00010203"),
    ("URI", "1 2 \"ftp://example/\""),
];

/// A small generator of random numbers (xorshift).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn labels(&mut self) -> Labels {
        (0..=self.below(3)).map(|_| LABELS[self.below(LABELS.len())]).collect()
    }
}

/// The records of a zone.
#[derive(Debug)]
pub struct Generated {
    origin: String,
    records: BTreeMap<Labels, Sets>,
}

impl Generated {
    /// Returns a random zone.
    pub fn new(origin: &str, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut records: BTreeMap<Labels, Sets> = BTreeMap::new();
        for _ in 0..16 {
            let owner = random.labels();
            let sets = records.entry(owner.clone()).or_default();
            let wild = *owner.last().expect("a label") == "*";
            let lone = sets.is_empty();
            let special = sets.contains_key("CNAME") || sets.contains_key("NS") || sets.contains_key("DNAME");
            let name = |random: &mut Random| match random.below(6) {
                0 => "@".to_owned(),
                _ => format!("={}", shown(&random.labels())),
            };
            let (rtype, data) = match random.below(12) {
                0 | 1 if lone => ("CNAME", name(&mut random)),
                2 if lone && !wild => ("DNAME", name(&mut random)),
                3 if lone && !wild => ("NS", "ns.elsewhere.test.".to_owned()),
                4 if lone && !wild => {
                    let digest = "1 13 2 000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f";
                    sets.insert("DS", vec![digest.to_owned()]);
                    ("NS", "=ns".to_owned() + ".below." + &shown(&owner))
                }
                _ if special => continue,
                5 => ("TXT", "\"a text\" more".to_owned()),
                6 => ("MX", format!("1 {}", name(&mut random))),
                7 => ("SRV", format!("1 2 3 {}", name(&mut random))),
                8 => {
                    let (rtype, data) = TYPES[random.below(TYPES.len())];
                    (rtype, data.to_owned())
                }
                _ => ("A", format!("192.0.2.{}", random.below(200))),
            };
            sets.entry(rtype).or_default().push(data);
        }
        for (index, (rtype, data)) in TYPES.iter().enumerate() {
            // All types over a few zones.
            if index % 4 == seed as usize % 4 {
                let sets = records.entry(vec!["types"]).or_default();
                sets.insert(rtype, vec![(*data).to_owned()]);
            }
        }
        records.insert(
            vec![],
            BTreeMap::from([
                ("SOA", vec!["=ns =mail 7 3600 600 86400 60".to_owned()]),
                ("NS", vec!["=ns".to_owned(), "ns.elsewhere.test.".to_owned()]),
            ]),
        );
        records.insert(vec!["ns"], BTreeMap::from([("A", vec!["192.0.2.250".to_owned()])]));
        let mut zone = Self { origin: origin.to_owned(), records };
        zone.remove_hidden();
        zone.add_glue();
        zone
    }

    /// Removes names below delegations and DNAME records.
    fn remove_hidden(&mut self) {
        let over: Vec<Labels> = self
            .records
            .iter()
            .filter(|(owner, sets)| {
                !owner.is_empty() && (sets.contains_key("NS") || sets.contains_key("DNAME"))
            })
            .map(|(owner, _)| owner.clone())
            .collect();
        self.records.retain(|owner, sets| {
            !sets.is_empty() && !over.iter().any(|over| owner.len() > over.len() && owner.starts_with(over))
        });
    }

    /// Adds the addresses of servers within their delegations.
    fn add_glue(&mut self) {
        let cuts: Vec<Labels> = self
            .records
            .iter()
            .filter(|(_, sets)| sets.contains_key("DS"))
            .map(|(owner, _)| owner.clone())
            .collect();
        for mut host in cuts {
            host.extend(["below", "ns"]);
            self.records.insert(host, BTreeMap::from([("A", vec!["192.0.2.251".to_owned()])]));
        }
    }

    fn is_cut(&self, owner: &Labels) -> bool {
        !owner.is_empty() && self.records.get(owner).is_some_and(|sets| sets.contains_key("NS"))
    }

    /// Returns whether a name is below a delegation.
    fn is_below_cut(&self, owner: &Labels) -> bool {
        (1..owner.len()).any(|len| self.is_cut(&owner[..len].to_vec()))
    }

    /// Returns names to ask for: all with records, those around them, and random ones.
    pub fn questions(&self, seed: u64, count: usize) -> Vec<String> {
        let mut random = Random::new(seed);
        let mut names: BTreeSet<String> = self.records.keys().map(|owner| self.full(owner)).collect();
        for owner in self.records.keys().filter(|owner| owner.len() < 4) {
            let below = [owner.clone(), vec![LABELS[random.below(LABELS.len())]]].concat();
            names.insert(self.full(&below));
        }
        names.extend((0..count).map(|_| self.full(&random.labels())));
        names.into_iter().collect()
    }

    /// Returns the types of the zone's records.
    pub fn types(&self) -> BTreeSet<&'static str> {
        self.records.values().flat_map(Sets::keys).copied().collect()
    }

    fn full(&self, owner: &Labels) -> String {
        match owner.is_empty() {
            true => self.origin.clone(),
            false => format!("{}.{}", shown(owner), self.origin),
        }
    }

    /// Returns the zone's file.
    pub fn text(&self, signed: Signed) -> String {
        let mut text = "$TTL 300\n".to_owned();
        let mut records = self.records.clone();
        if signed != Signed::No {
            let apex = records.get_mut(&vec![]).expect("the apex");
            apex.insert("DNSKEY", vec!["257 3 13 AAECAwQFBgcAAQIDBAUGBwABAgMEBQYHAAECAwQFBgcAAQIDBAUGBwABAgMEBQYHAAECAwQFBgcAAQIDBAUGBw==".to_owned()]);
            if let Signed::Nsec3 { .. } = signed {
                apex.insert("NSEC3PARAM", vec![format!("1 0 {ITERATIONS} aabb")]);
            }
        }
        for (owner, sets) in &records {
            for (rtype, data) in sets {
                self.write_set(&mut text, owner, rtype, data, signed);
            }
        }
        match signed {
            Signed::No => {}
            Signed::Nsec => self.write_names(&mut text, &records),
            Signed::Nsec3 { opt_out } => self.write_hashes(&mut text, &records, opt_out),
        }
        text
    }

    fn write_set(&self, text: &mut String, owner: &Labels, rtype: &str, data: &[String], signed: Signed) {
        let full = self.full(owner);
        for data in data {
            let words = data.split(' ').map(|word| match word.strip_prefix('=') {
                Some(name) => format!("{name}.{}", self.origin),
                None => word.to_owned(),
            });
            let data = words.collect::<Vec<_>>().join(" ");
            let _ = writeln!(text, "{full} {rtype} {data}");
        }
        let own = !self.is_below_cut(owner) && (!self.is_cut(owner) || rtype == "DS");
        if signed != Signed::No && own {
            self.sign(text, &full, owner.iter().filter(|label| **label != "*").count(), rtype, 300);
        }
    }

    fn sign(&self, text: &mut String, owner: &str, labels: usize, rtype: &str, ttl: u32) {
        let labels = labels + self.origin.matches('.').count();
        let signature = "AAECAwQFBgcAAQIDBAUGBwABAgMEBQYHAAECAwQFBgc=";
        let _ = writeln!(
            text,
            "{owner} {ttl} RRSIG {rtype} 13 {labels} {ttl} 20460101000000 20200101000000 1 {} {signature}",
            self.origin
        );
    }

    /// Returns the types of a name as a chain lists them.
    fn listed(&self, owner: &Labels, sets: &Sets) -> String {
        let cut = self.is_cut(owner);
        let own = sets.keys().filter(|rtype| !cut || matches!(**rtype, "NS" | "DS"));
        own.copied().collect::<Vec<_>>().join(" ")
    }

    fn write_names(&self, text: &mut String, records: &BTreeMap<Labels, Sets>) {
        let names: Vec<_> = records.iter().filter(|(owner, _)| !self.is_below_cut(owner)).collect();
        for (index, (owner, sets)) in names.iter().enumerate() {
            let next = self.full(names[(index + 1) % names.len()].0);
            let full = self.full(owner);
            let _ = writeln!(text, "{full} 60 NSEC {next} {} RRSIG NSEC", self.listed(owner, sets));
            self.sign(text, &full, owner.iter().filter(|label| **label != "*").count(), "NSEC", 60);
        }
    }

    fn write_hashes(&self, text: &mut String, records: &BTreeMap<Labels, Sets>, opt_out: bool) {
        let listed = |owner: &Labels| {
            let insecure = self.is_cut(owner) && !records[owner].contains_key("DS");
            !(self.is_below_cut(owner) || opt_out && insecure)
        };
        let mut hashes: BTreeMap<String, String> = BTreeMap::new();
        for owner in records.keys().filter(|owner| listed(owner)) {
            // The name itself and all that are above it, which may have no records.
            for len in 0..=owner.len() {
                let name = owner[..len].to_vec();
                let types = records.get(&name).map(|sets| {
                    let signature =
                        if self.is_cut(&name) && !sets.contains_key("DS") { "" } else { " RRSIG" };
                    self.listed(&name, sets) + signature
                });
                hashes.insert(hash(&self.full(&name)), types.unwrap_or_default());
            }
        }
        let order: Vec<_> = hashes.keys().cloned().collect();
        for (index, name) in order.iter().enumerate() {
            let next = &order[(index + 1) % order.len()];
            let full = format!("{name}.{}", self.origin);
            let flags = u8::from(opt_out);
            let _ = writeln!(text, "{full} 60 NSEC3 1 {flags} {ITERATIONS} aabb {next} {}", hashes[name]);
            self.sign(text, &full, 1, "NSEC3", 60);
        }
    }
}

const ITERATIONS: usize = 2;

fn shown(labels: &[&str]) -> String {
    labels.iter().rev().copied().collect::<Vec<_>>().join(".")
}

/// Returns the hash of a name as digits (RFC 5155, section 5; RFC 4648, section 7), with two
/// iterations and the salt AABB.
pub fn hash(name: &str) -> String {
    let mut wire = Vec::new();
    for label in name.split('.') {
        wire.push(label.len() as u8);
        wire.extend(label.bytes());
    }
    let salt = [0xaa, 0xbb];
    let first = sha1([&wire, &salt]);
    let hash = (0..ITERATIONS).fold(first, |hash, _| sha1([&hash, &salt]));
    let bits: String = hash.iter().map(|octet| format!("{octet:08b}")).collect();
    let digit = |bits: &[u8]| {
        let value = u32::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap();
        char::from_digit(value, 32).unwrap()
    };
    bits.as_bytes().chunks(5).map(digit).collect()
}
