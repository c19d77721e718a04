//! One zone: its names as a tree, and the path of a query through it.
//!
//! Owns the nodes and the algorithm of RFC 1034, section 4.3.2, step 3, with the wildcards of RFC
//! 4592. A zone does not change once it is built ([`read`], [`check`]); a reload builds another
//! one.
//!
//! # Invariants
//! * Node 0 is the apex. A node's parent stands before it, and every name between a record's owner
//!   and the apex has a node, so empty non-terminals (RFC 4592, section 2.2.2) need no care.
//! * The children of all nodes are in one hash table by parent and label: a step down is one probe.
//!   Queries cannot add to it.

pub mod check;
pub mod entries;
pub mod problem;
pub mod read;

use core::hash::BuildHasher;

use domain::base::iana::Rtype;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::name::{FlatName, StoredName, store};
use crate::rdata::Rdata;

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
}

impl Node {
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
    Wildcard(&'a Node),
    /// It belongs to the zone delegated at this node.
    Cut {
        /// Where the delegation is.
        node: &'a Node,
        /// Whether the name is that of the delegation itself.
        exact: bool,
    },
    /// It does not exist.
    Missing,
}

/// A zone.
#[derive(Debug)]
pub struct Zone {
    origin: FlatName,
    nodes: Vec<Node>,
    children: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Number of the apex among the nodes.
const APEX: u32 = 0;

impl Zone {
    /// Returns a zone with nothing in it.
    fn empty(origin: &StoredName) -> Self {
        let apex = Node {
            parent: APEX,
            label: Box::default(),
            name: origin.clone(),
            rrsets: Vec::new(),
            wildcard: None,
        };
        Self {
            origin: FlatName::new(origin),
            nodes: vec![apex],
            children: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
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

    /// Follows a name that is within the zone from the apex down.
    ///
    /// # Panics
    /// If the name has fewer labels than the origin.
    #[inline]
    pub fn find(&self, name: &FlatName) -> Found<'_> {
        let mut node = self.apex();
        let mut number = APEX;
        for index in (0..name.labels() - self.origin.labels()).rev() {
            let Some(child) = self.child(number, name.label(index)) else {
                // `node` is the closest encloser (RFC 4592, section 3.3.1).
                return node
                    .wildcard
                    .map_or(Found::Missing, |star| Found::Wildcard(&self.nodes[star as usize]));
            };
            (number, node) = (child, &self.nodes[child as usize]);
            if node.rrset(Rtype::NS).is_some() {
                return Found::Cut { node, exact: index == 0 };
            }
        }
        Found::Exact(node)
    }

    /// Returns the node of a name, below delegations too: for glue.
    pub fn glue(&self, name: &FlatName) -> Option<&Node> {
        if !name.is_within(&self.origin) {
            return None;
        }
        let mut number = APEX;
        for index in (0..name.labels() - self.origin.labels()).rev() {
            number = self.child(number, name.label(index))?;
        }
        Some(&self.nodes[number as usize])
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
        self.nodes.push(Node { parent, label: label.into(), name, rrsets: Vec::new(), wildcard: None });
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
    fn insert(&mut self, owner: &FlatName, rtype: Rtype, ttl: u32, data: Rdata) {
        let rrsets = &mut self.node_mut(owner).rrsets;
        let Some(rrset) = rrsets.iter_mut().find(|rrset| rrset.rtype == rtype) else {
            return rrsets.push(RrSet { rtype, ttl, data: vec![data] });
        };
        rrset.ttl = rrset.ttl.min(ttl);
        if !rrset.data.contains(&data) {
            rrset.data.push(data);
        }
    }
}
