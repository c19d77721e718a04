//! One zone: its names as a tree, and the path of a query through it.
//!
//! Owns the nodes and the algorithm of RFC 1034, section 4.3.2, step 3, with the wildcards of RFC
//! 4592. A zone does not change once it is built ([`read`], [`check`]); a reload builds another
//! one.
//!
//! # Invariants
//! * Node 0 is the apex. A node's parent stands before it, and every name between a record's owner
//!   and the apex has a node, so empty non-terminals (RFC 4592, section 2.2.2) need no care.
//! * The names of NSEC3 records are hashes and no names of the zone (RFC 5155, section 7.2.8): they
//!   have no nodes, and are in [`denial`].
//! * The children of all nodes are in one hash table by parent and label: a step down is one probe.
//!   Queries cannot add to it.

pub mod check;
pub mod denial;
pub mod entries;
mod fields;
pub mod hash;
pub mod problem;
pub mod read;
mod syntax;
mod words;

use core::hash::BuildHasher;

use domain::base::iana::Rtype;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::name::{FlatName, StoredName, store};
use crate::rdata::Rdata;
use denial::Denial;
use problem::Fault;

/// Maximum number of aliases followed for one question, which bounds the proofs of an answer.
pub const MAX_CHAIN: usize = 16;

/// Records of one name and type.
#[derive(Debug, Clone)]
pub struct RrSet {
    /// The type.
    pub rtype: Rtype,
    /// Time to live in s, the lowest that any of the records was given (they must agree, RFC 2181,
    /// section 5.2).
    pub ttl: u32,
    /// The data, one for each record, in the order of the file.
    pub data: Vec<Rdata>,
    /// The data of the RRSIG records that sign them.
    pub signatures: Vec<Rdata>,
}

impl RrSet {
    fn new(rtype: Rtype, ttl: u32) -> Self {
        Self { rtype, ttl, data: Vec::new(), signatures: Vec::new() }
    }

    /// Adds a record, or, if it is of another type, a signature.
    fn add(&mut self, rtype: Rtype, ttl: u32, data: Rdata) {
        // A signature has the TTL of what it signs (RFC 4034, section 3).
        let list = match rtype == self.rtype {
            true => {
                self.ttl = if self.data.is_empty() { ttl } else { self.ttl.min(ttl) };
                &mut self.data
            }
            false => &mut self.signatures,
        };
        if !list.contains(&data) {
            list.push(data);
        }
    }
}

/// A name of the zone.
#[derive(Debug)]
pub struct Node {
    parent: u32,
    /// In lower case; empty for the apex.
    label: Box<[u8]>,
    /// The name with the case of its first record.
    name: StoredName,
    rrsets: Vec<RrSet>,
    /// The child `*`.
    wildcard: Option<u32>,
    /// It has NS records and is not the apex.
    delegates: bool,
    /// It has a DNAME record.
    redirects: bool,
}

impl Node {
    fn new(parent: u32, label: Box<[u8]>, name: StoredName) -> Self {
        let (rrsets, wildcard) = (Vec::new(), None);
        Self { parent, label, name, rrsets, wildcard, delegates: false, redirects: false }
    }

    /// Returns the name.
    pub fn name(&self) -> &StoredName {
        &self.name
    }

    /// Returns the records of a type.
    pub fn rrset(&self, rtype: Rtype) -> Option<&RrSet> {
        self.rrsets.iter().find(|rrset| rrset.rtype == rtype)
    }

    /// Returns all records; none at an empty non-terminal.
    pub fn rrsets(&self) -> &[RrSet] {
        &self.rrsets
    }
}

/// Where the way of a name through the zone ends.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// The name exists.
    Exact(&'a Node),
    /// It does not, and records are made from this wildcard.
    Wildcard {
        /// The wildcard.
        node: &'a Node,
        /// Number of labels of the closest encloser (RFC 4592, section 3.3.1).
        encloser: usize,
    },
    /// It is below a name with a DNAME record (RFC 6672).
    Redirected {
        /// The node with the record.
        node: &'a Node,
        /// Number of labels of its name.
        labels: usize,
    },
    /// It belongs to the zone delegated at this node.
    Cut {
        /// Where the delegation is.
        node: &'a Node,
        /// True if the name is that of the delegation itself.
        exact: bool,
    },
    /// It does not exist.
    Missing {
        /// Number of labels of the closest encloser.
        encloser: usize,
    },
}

/// A zone.
#[derive(Debug)]
pub struct Zone {
    origin: FlatName,
    nodes: Vec<Node>,
    children: HashTable<u32>,
    hasher: DefaultHashBuilder,
    denial: Denial,
    servers: Vec<Server>,
    /// Until [`complete`](Self::complete).
    signatures: Vec<Signature>,
}

/// A RRSIG record whose name may turn out to have nothing that it signs.
#[derive(Debug)]
struct Signature {
    owner: StoredName,
    covered: Rtype,
    ttl: u32,
    data: Rdata,
}

/// A server of the zone, ready for the authority section.
#[derive(Debug)]
pub struct Server {
    /// The octets of its name, without those of the zone's name at the end if it is within.
    pub front: Box<[u8]>,
    /// True if the zone's name follows.
    pub inside: bool,
    /// The node with its addresses.
    node: Option<u32>,
}

/// Number of the apex among the nodes.
const APEX: u32 = 0;

impl Zone {
    /// Returns a zone with nothing in it.
    fn empty(origin: &StoredName) -> Self {
        let apex = Node::new(APEX, Box::default(), origin.clone());
        Self {
            origin: FlatName::new(origin),
            nodes: vec![apex],
            children: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            denial: Denial::default(),
            servers: Vec::new(),
            signatures: Vec::new(),
        }
    }

    /// Returns the name of the apex.
    pub fn origin(&self) -> &FlatName {
        &self.origin
    }

    /// Returns the node at the top, with the SOA and NS records.
    pub fn apex(&self) -> &Node {
        &self.nodes[APEX as usize]
    }

    /// Returns all nodes, parents before children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the SOA record and how long answers that something does not exist may be kept, in s:
    /// the lower of its TTL and its last number (RFC 2308, section 5). A checked zone has one.
    pub fn soa(&self) -> Option<(&Rdata, u32)> {
        let rrset = self.apex().rrset(Rtype::SOA)?;
        let soa = rrset.data.first()?;
        Some((soa, rrset.ttl.min(soa.soa_minimum()?)))
    }

    /// Returns the zone's servers in the order of its NS records, each with the node of its
    /// addresses.
    pub fn servers(&self) -> impl Iterator<Item = (&Server, Option<&Node>)> {
        let node = |server: &Server| server.node.map(|number| &self.nodes[number as usize]);
        self.servers.iter().map(move |server| (server, node(server)))
    }

    /// Returns whether iterated hashes of names prove what the zone does not hold (RFC 5155).
    pub fn iterates_hashes(&self) -> bool {
        self.denial.iterates_hashes()
    }

    /// Follows a name that is within the zone from the apex down.
    ///
    /// # Panics
    /// If the name has fewer labels than the origin.
    #[inline]
    pub fn find(&self, name: &FlatName) -> Found<'_> {
        let mut node = self.apex();
        let mut number = APEX;
        for index in (0..name.labels() - self.origin.labels()).rev() {
            // The labels of `node`.
            let labels = name.labels() - index - 1;
            if node.redirects {
                return Found::Redirected { node, labels };
            }
            let Some(child) = self.child(number, name.label(index)) else {
                return match node.wildcard {
                    None => Found::Missing { encloser: labels },
                    Some(star) => Found::Wildcard { node: &self.nodes[star as usize], encloser: labels },
                };
            };
            (number, node) = (child, &self.nodes[child as usize]);
            if node.delegates {
                return Found::Cut { node, exact: index == 0 };
            }
        }
        Found::Exact(node)
    }

    /// Returns the node of a name, below delegations too: for glue.
    pub fn glue(&self, name: &FlatName) -> Option<&Node> {
        self.number(name).map(|number| &self.nodes[number as usize])
    }

    fn number(&self, name: &FlatName) -> Option<u32> {
        if !name.is_within(&self.origin) {
            return None;
        }
        let mut number = APEX;
        for index in (0..name.labels() - self.origin.labels()).rev() {
            number = self.child(number, name.label(index))?;
        }
        Some(number)
    }

    /// Returns a number for a name, the same for equal names.
    pub fn fingerprint(&self, name: &FlatName) -> u64 {
        self.hasher.hash_one(name.suffix(name.labels()))
    }

    #[inline]
    fn child(&self, parent: u32, label: &[u8]) -> Option<u32> {
        let same = |&number: &u32| {
            let node = &self.nodes[number as usize];
            node.parent == parent && *node.label == *label
        };
        self.children.find(self.hasher.hash_one((parent, label)), same).copied()
    }

    /// Returns the node of a name within the zone, made if there is none, with all above it.
    fn node_mut(&mut self, name: &FlatName) -> &mut Node {
        let mut number = APEX;
        for index in (0..name.labels() - self.origin.labels()).rev() {
            number = match self.child(number, name.label(index)) {
                Some(child) => child,
                None => self.add(number, name, index),
            };
        }
        &mut self.nodes[number as usize]
    }

    fn add(&mut self, parent: u32, name: &FlatName, index: usize) -> u32 {
        let number = self.nodes.len() as u32;
        let label = name.label(index);
        if label == b"*" {
            self.nodes[parent as usize].wildcard = Some(number);
        }
        let above = name.name().iter_suffixes().nth(index).map(|name| store(&name));
        let name = above.expect("a name has a suffix for each label");
        self.nodes.push(Node::new(parent, label.into(), name));
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let hash = |&number: &u32| {
            let node = &nodes[number as usize];
            hasher.hash_one((node.parent, &*node.label))
        };
        self.children.insert_unique(hash(&number), number, hash);
        number
    }

    /// Adds a record whose owner is within the zone. The same data again change nothing (RFC 2181,
    /// section 5).
    ///
    /// # Errors
    /// If it is a NSEC3 record whose name is no hash.
    fn insert(&mut self, owner: &FlatName, rtype: Rtype, ttl: u32, data: Rdata) -> Result<(), Fault> {
        let covered = if rtype == Rtype::RRSIG { data.signs().unwrap_or(rtype) } else { rtype };
        if covered == Rtype::NSEC3 {
            return self.denial.insert(owner, rtype, ttl, data);
        }
        if rtype == Rtype::RRSIG {
            // It makes no node: a name without other records does not exist.
            self.signatures.push(Signature { owner: store(owner.name()), covered, ttl, data });
            return Ok(());
        }
        let apex = owner.labels() == self.origin.labels();
        let node = self.node_mut(owner);
        node.delegates |= rtype == Rtype::NS && !apex;
        node.redirects |= rtype == Rtype::DNAME;
        let at = node.rrsets.iter().position(|rrset| rrset.rtype == rtype).unwrap_or_else(|| {
            node.rrsets.push(RrSet::new(rtype, ttl));
            node.rrsets.len() - 1
        });
        node.rrsets[at].add(rtype, ttl, data);
        Ok(())
    }

    /// Ends the reading of records: signatures are put to what they sign, those of nothing are
    /// dropped, and the records that prove that names do not exist are put in order.
    ///
    /// # Errors
    /// If they cannot be used.
    fn complete(&mut self) -> Result<(), Fault> {
        for Signature { owner, covered, ttl, data } in core::mem::take(&mut self.signatures) {
            let node = self.number(&FlatName::new(&owner)).map(|number| &mut self.nodes[number as usize]);
            let rrsets = node.into_iter().flat_map(|node| &mut node.rrsets);
            if let Some(rrset) = rrsets.into_iter().find(|rrset| rrset.rtype == covered) {
                rrset.add(Rtype::RRSIG, ttl, data);
            }
        }
        let servers = self.apex().rrset(Rtype::NS).into_iter().flat_map(|servers| &servers.data);
        let server = |name: &StoredName| {
            let flat = FlatName::new(name);
            let inside = flat.is_within(&self.origin) && self.origin.labels() > 0;
            let front = name.len() - if inside { self.origin.name().len() } else { 0 };
            Server { front: name.as_slice()[..front].into(), inside, node: self.number(&flat) }
        };
        self.servers = servers.filter_map(Rdata::target).map(server).collect();
        let mut denial = core::mem::take(&mut self.denial);
        let done = denial.complete(self);
        self.denial = denial;
        done
    }
}
