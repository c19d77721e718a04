//! Records that prove what a signed zone does not hold: NSEC (RFC 4034, section 4) and NSEC3 (RFC
//! 5155).
//!
//! Owns their order, and which of them an answer needs (RFC 4035, section 3.1.3; RFC 5155, section
//! 7.2). They come from the zone's file, like the signatures: nothing is signed here. A record that
//! a chain lacks is left out of the answer, which then proves too little; resolvers notice.
//!
//! A zone with a NSEC3PARAM record at its apex uses the NSEC3 records with the same parameters. Any
//! other zone uses its NSEC records, if it has some.

use core::cmp::Ordering;

use domain::base::iana::Rtype;
use domain::base::name::ToName;

use super::hash::{LEN, sha1};
use super::problem::Fault;
use super::{MAX_CHAIN, Node, RrSet, Zone};
use crate::name::{FlatName, StoredName, store};
use crate::rdata::Rdata;

/// Maximum number of iterations of a hash: more than signers use (RFC 9276 asks for 0), and as many
/// as common resolvers still check. An answer takes up to three hashes, one more for each alias
/// made from a wildcard on the way, and one for each label above its name that opt-out left out.
pub const MAX_ITERATIONS: u16 = 150;

/// Maximum number of sets that one answer needs: one for each wildcard on the way, and those of its
/// end.
const MAX_PROOFS: usize = MAX_CHAIN + 4;

/// A hash of a name.
type Hash = [u8; LEN];

/// The order of a zone's NSEC or NSEC3 records.
#[derive(Debug, Default)]
pub struct Denial {
    /// Numbers of the nodes with NSEC records, in canonical order (RFC 4034, section 6.1).
    names: Vec<u32>,
    /// NSEC3 records by hash; before [`complete`](Self::complete) one entry for each record and
    /// signature, in the order of the file.
    hashes: Vec<Hashed>,
    parameters: Option<Parameters>,
}

/// A NSEC3 record.
#[derive(Debug)]
struct Hashed {
    hash: Hash,
    name: StoredName,
    rrset: RrSet,
}

/// How names are hashed (RFC 5155, section 4.1).
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    iterations: u16,
    salt: Box<[u8]>,
}

impl Parameters {
    /// Reads the front that NSEC3PARAM and NSEC3 records have in common.
    fn read(data: &Rdata) -> Option<Self> {
        let [algorithm, _flags, high, low, len, rest @ ..] = data.octets() else { return None };
        let salt = rest.get(..usize::from(*len))?.into();
        // SHA-1 is the only algorithm there is.
        (*algorithm == 1).then_some(Self { iterations: u16::from_be_bytes([*high, *low]), salt })
    }

    /// RFC 5155, section 5; `name` is in lower case.
    fn hash(&self, name: &[u8]) -> Hash {
        let first = sha1([name, &self.salt]);
        (0..self.iterations).fold(first, |hash, _| {
            // All hashes of an answer may take 100 us.
            tailwater::poll();
            sha1([&hash, &self.salt])
        })
    }
}

/// A set of records for the authority section.
#[derive(Debug, Clone, Copy)]
pub struct Proof<'a> {
    /// The owner.
    pub name: &'a StoredName,
    /// The NSEC or NSEC3 records.
    pub rrset: &'a RrSet,
}

/// The sets that an answer needs, each once.
#[derive(Debug, Default)]
pub struct Proofs<'a> {
    list: [Option<Proof<'a>>; MAX_PROOFS],
    len: usize,
}

impl<'a> Proofs<'a> {
    fn add(&mut self, proof: Option<Proof<'a>>) {
        let Some(proof) = proof else { return };
        if self.len < MAX_PROOFS && !self.iter().any(|other| core::ptr::eq(other.rrset, proof.rrset)) {
            self.list[self.len] = Some(proof);
            self.len += 1;
        }
    }

    /// Returns the sets, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Proof<'a>> {
        self.list.into_iter().flatten()
    }
}

impl Denial {
    /// Adds a NSEC3 record, or a signature of one.
    ///
    /// # Errors
    /// If the name is no hash.
    pub fn insert(&mut self, owner: &FlatName, rtype: Rtype, ttl: u32, data: Rdata) -> Result<(), Fault> {
        let hash = (owner.labels() > 0).then(|| unbase32(owner.label(0))).flatten();
        let Some(hash) = hash else { return Err(Fault::Nsec3Name(store(owner.name()))) };
        let mut rrset = RrSet::new(Rtype::NSEC3, ttl);
        rrset.add(rtype, ttl, data);
        self.hashes.push(Hashed { hash, name: store(owner.name()), rrset });
        Ok(())
    }

    /// Returns whether proofs are NSEC3 records by hashes with at least one additional iteration.
    pub fn iterates_hashes(&self) -> bool {
        self.parameters.as_ref().is_some_and(|parameters| parameters.iterations > 0)
    }

    /// Puts the records in order, once the zone has all.
    ///
    /// # Errors
    /// If hashes take too many iterations.
    pub fn complete(&mut self, zone: &Zone) -> Result<(), Fault> {
        let parameters = zone.apex().rrset(Rtype::NSEC3PARAM);
        self.parameters = parameters.and_then(|set| {
            // With flags, the record must not be used: its chain may be incomplete (RFC 5155,
            // section 4.1.2).
            let usable = set.data.iter().filter(|data| data.octets().get(1) == Some(&0));
            usable.into_iter().find_map(Parameters::read)
        });
        if let Some(Parameters { iterations, .. }) = self.parameters
            && iterations > MAX_ITERATIONS
        {
            return Err(Fault::Iterations(iterations, MAX_ITERATIONS));
        }
        // Of several chains, only the one that the apex names is complete (RFC 5155, section 4).
        self.hashes.retain(|entry| {
            let data = entry.rrset.data.first();
            data.is_none_or(|data| Parameters::read(data) == self.parameters)
        });
        self.hashes.sort_by_key(|entry| entry.hash);
        self.hashes.dedup_by(|entry, kept| {
            let same = entry.hash == kept.hash;
            if same {
                merge(&mut kept.rrset, &mut entry.rrset);
            }
            same
        });
        self.hashes.retain(|entry| !entry.rrset.data.is_empty());
        let number = 0..zone.nodes.len() as u32;
        let node = |number: u32| &zone.nodes[number as usize];
        self.names = number.filter(|number| node(*number).rrset(Rtype::NSEC).is_some()).collect();
        self.names.sort_by(|a, b| node(*a).name.name_cmp(&node(*b).name));
        Ok(())
    }

    /// Returns the NSEC record of the last name up to `name`.
    fn covering_name<'a>(&self, zone: &'a Zone, name: &FlatName) -> Option<Proof<'a>> {
        let after = self.names.partition_point(|number| {
            zone.nodes[*number as usize].name.name_cmp(name.name()) != Ordering::Greater
        });
        // Before the apex there is none: the name is within the zone.
        let number = self.names.get(after.checked_sub(1)?)?;
        nsec_of(&zone.nodes[*number as usize])
    }

    fn matching(&self, hash: &Hash) -> Option<Proof<'_>> {
        let at = self.hashes.binary_search_by_key(hash, |entry| entry.hash).ok()?;
        Some(self.hashes[at].proof())
    }

    /// Returns the NSEC3 record of the last hash up to `hash`, or, before the first, the last of
    /// all, which leads to the first (RFC 5155, section 3.1.7).
    fn covering(&self, hash: &Hash) -> Option<Proof<'_>> {
        let after = self.hashes.partition_point(|entry| entry.hash <= *hash);
        let at = after.checked_sub(1).or(self.hashes.len().checked_sub(1))?;
        Some(self.hashes[at].proof())
    }
}

impl Hashed {
    fn proof(&self) -> Proof<'_> {
        Proof { name: &self.name, rrset: &self.rrset }
    }
}

fn nsec_of(node: &Node) -> Option<Proof<'_>> {
    node.rrset(Rtype::NSEC).map(|rrset| Proof { name: &node.name, rrset })
}

fn merge(kept: &mut RrSet, more: &mut RrSet) {
    for data in more.data.drain(..) {
        kept.add(Rtype::NSEC3, more.ttl, data);
    }
    for data in more.signatures.drain(..) {
        kept.add(Rtype::RRSIG, more.ttl, data);
    }
}

/// Decodes the 32 digits of a hash (RFC 4648, section 7), in lower case.
fn unbase32(label: &[u8]) -> Option<Hash> {
    let mut hash = [0; LEN];
    // Eight digits are five octets.
    let groups = label.as_chunks::<8>();
    if label.len() != 32 {
        return None;
    }
    for (octets, digits) in hash.as_chunks_mut::<5>().0.iter_mut().zip(groups.0) {
        let mut bits = 0u64;
        for digit in digits {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'v' => digit - b'a' + 10,
                _ => return None,
            };
            bits = bits << 5 | u64::from(value);
        }
        octets.copy_from_slice(&bits.to_be_bytes()[3..]);
    }
    Some(hash)
}

impl Zone {
    /// Adds the proof that a name does not exist, nor a wildcard for it: RFC 4035, section 3.1.3.2;
    /// RFC 5155, section 7.2.2. `encloser` is the number of labels of the closest encloser.
    pub fn prove_no_name<'a>(&'a self, name: &FlatName, encloser: usize, proofs: &mut Proofs<'a>) {
        let Some(parameters) = &self.denial.parameters else {
            proofs.add(self.denial.covering_name(self, name));
            proofs.add(self.denial.covering_name(self, &name.wildcard(encloser)));
            return;
        };
        let encloser = self.prove_encloser(name, encloser, proofs);
        let wildcard = parameters.hash(name.wildcard(encloser).suffix(encloser + 1));
        proofs.add(self.denial.covering(&wildcard));
    }

    /// Adds the proof that a name has no records of a type: RFC 4035, section 3.1.3.1; RFC 5155,
    /// sections 7.2.3 and 7.2.4. Also that a delegation is not signed (section 7.2.7).
    pub fn prove_no_data<'a>(&'a self, name: &FlatName, node: &'a Node, proofs: &mut Proofs<'a>) {
        let Some(parameters) = &self.denial.parameters else {
            // The name of an empty non-terminal is between two others.
            return proofs.add(nsec_of(node).or_else(|| self.denial.covering_name(self, name)));
        };
        match self.denial.matching(&parameters.hash(name.suffix(name.labels()))) {
            Some(proof) => proofs.add(Some(proof)),
            // Left out of the chain (opt-out, RFC 5155, section 6): the names above it are not.
            None => {
                let above = name.labels().saturating_sub(1).max(self.origin.labels());
                self.prove_encloser(name, above, proofs);
            }
        }
    }

    /// Adds the proof that a wildcard has no records of a type, and that there is no closer name:
    /// RFC 4035, section 3.1.3.4; RFC 5155, section 7.2.5.
    pub fn prove_no_data_at_wildcard<'a>(
        &'a self,
        name: &FlatName,
        node: &'a Node,
        encloser: usize,
        proofs: &mut Proofs<'a>,
    ) {
        let wildcard = name.wildcard(encloser);
        let Some(parameters) = &self.denial.parameters else {
            proofs.add(nsec_of(node).or_else(|| self.denial.covering_name(self, &wildcard)));
            return proofs.add(self.denial.covering_name(self, name));
        };
        self.prove_encloser(name, encloser, proofs);
        let hash = parameters.hash(wildcard.suffix(wildcard.labels()));
        proofs.add(self.denial.matching(&hash).or_else(|| self.denial.covering(&hash)));
    }

    /// Adds the proof that no name is closer than the wildcard from which the answer was made: RFC
    /// 4035, section 3.1.3.3; RFC 5155, section 7.2.6.
    pub fn prove_wildcard<'a>(&'a self, name: &FlatName, encloser: usize, proofs: &mut Proofs<'a>) {
        proofs.add(match &self.denial.parameters {
            None => self.denial.covering_name(self, name),
            Some(parameters) => self.denial.covering(&parameters.hash(name.suffix(encloser + 1))),
        });
    }

    /// Adds the proof of the closest encloser (RFC 5155, section 7.2.1): the record of the longest
    /// name above that has one, `encloser` or shorter, and the one that covers the next longer
    /// name. Returns the number of labels of the former.
    fn prove_encloser<'a>(&'a self, name: &FlatName, encloser: usize, proofs: &mut Proofs<'a>) -> usize {
        let Some(parameters) = &self.denial.parameters else { return encloser };
        for labels in (self.origin.labels()..=encloser).rev() {
            let Some(proof) = self.denial.matching(&parameters.hash(name.suffix(labels))) else { continue };
            proofs.add(Some(proof));
            if labels < name.labels() {
                proofs.add(self.denial.covering(&parameters.hash(name.suffix(labels + 1))));
            }
            return labels;
        }
        encloser
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_names_are_those_of_rfc_5155() {
        // Appendix A.
        let parameters = Parameters { iterations: 12, salt: [0xaa, 0xbb, 0xcc, 0xdd].into() };
        for (name, digits) in [
            (&b"\x07example\0"[..], "0p9mhaveqvm6t7vbl5lop2u3t2rp3tom"),
            (b"\x01a\x07example\0", "35mthgpgcu1qg68fab165klnsnk3dpvl"),
            (b"\x02ai\x07example\0", "gjeqe526plbf1g8mklp59enfd789njgi"),
            (b"\x01*\x01w\x07example\0", "r53bq7cc2uvmubfu5ocmm6pers9tk9en"),
        ] {
            assert_eq!(Some(parameters.hash(name)), unbase32(digits.as_bytes()), "{digits}");
        }
        assert_eq!(unbase32(b"0p9mhaveqvm6t7vbl5lop2u3t2rp3to"), None, "too short");
        assert_eq!(unbase32(b"0p9mhaveqvm6t7vbl5lop2u3t2rp3tow"), None, "not a digit");
    }
}
