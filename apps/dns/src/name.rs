//! Domain names in a form for look-ups.
//!
//! Owns [`FlatName`], a name in a buffer of its own with the positions of its labels and a copy in
//! lower case, so that following a query needs no allocation, and [`StoredName`], a name that a
//! zone keeps. Names compare without regard to the case of ASCII letters (RFC 4343); answers keep
//! the case of the question, and otherwise that of the zone file.

use domain::base::name::{Label, Name, ToLabelIter};

/// A name that a zone keeps, uncompressed, in its original case.
pub type StoredName = Name<Box<[u8]>>;

/// Maximum length of a name on the wire, with the root label (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 255;

/// Maximum number of labels of a name, without the root label: each takes at least two octets.
const MAX_LABELS: usize = 127;

/// A name without compression, in place, with the positions of its labels.
#[derive(Clone, Copy)]
pub struct FlatName {
    wire: [u8; MAX_NAME],
    lower: [u8; MAX_NAME],
    len: usize,
    /// Position of the length octet of each label, leftmost first.
    starts: [u8; MAX_LABELS],
    labels: usize,
}

impl FlatName {
    /// Returns the root.
    pub const fn root() -> Self {
        Self { wire: [0; MAX_NAME], lower: [0; MAX_NAME], len: 1, starts: [0; MAX_LABELS], labels: 0 }
    }

    /// Copies a name that was parsed, from a message or a [`StoredName`].
    ///
    /// # Panics
    /// Never: parsed names are within the limits of RFC 1035.
    pub fn new(name: &(impl ToLabelIter + ?Sized)) -> Self {
        Self::try_new(name).expect("parsed names are within the limits")
    }

    /// Copies a possible name: the reader of master files accepts some that are not names. `None`
    /// if a label is empty before the end, there is no end, or it is longer than 255 octets.
    pub fn try_new(name: &(impl ToLabelIter + ?Sized)) -> Option<Self> {
        let mut flat = Self::root();
        flat.set(name).then_some(flat)
    }

    /// Copies a possible name in place, without moving the whole value. Returns false if
    /// [`try_new`](Self::try_new) would return `None`; then it is the root.
    pub fn set(&mut self, name: &(impl ToLabelIter + ?Sized)) -> bool {
        self.set_labels(name.iter_labels())
    }

    /// Replaces it by the first `labels` labels of `name` in front of `base`: the target of a DNAME
    /// record for one name (RFC 6672, section 2.2). Returns false if that is too long; then it is
    /// the root.
    pub fn set_joined(&mut self, name: &Self, labels: usize, base: &Name<[u8]>) -> bool {
        self.set_labels(name.name().iter_labels().take(labels).chain(base.iter_labels()))
    }

    /// Returns the wildcard of the last `labels` labels, which must not be all.
    ///
    /// # Panics
    /// If the name has no label more than that.
    pub fn wildcard(&self, labels: usize) -> Self {
        let above = self.name();
        let above = above.iter_labels().skip(self.labels - labels);
        let mut wildcard = Self::root();
        let fits = wildcard.set_labels(core::iter::once(Label::wildcard()).chain(above));
        assert!(fits && labels < self.labels, "no longer than a name with one label more");
        wildcard
    }

    fn set_labels<'a>(&mut self, labels: impl Iterator<Item = &'a Label>) -> bool {
        (self.len, self.labels) = (0, 0);
        let mut complete = false;
        for label in labels {
            if complete || self.len + 1 + label.len() > MAX_NAME {
                complete = false;
                break;
            }
            complete = label.is_root();
            self.push(label);
        }
        if !complete {
            *self = Self::root();
        }
        complete
    }

    fn push(&mut self, label: &Label) {
        let (start, end) = (self.len, self.len + 1 + label.len());
        self.wire[start] = label.len() as u8;
        self.wire[start + 1..end].copy_from_slice(label.as_slice());
        // Length octets are below 64, so they are not letters.
        for (lower, octet) in self.lower[start..end].iter_mut().zip(&self.wire[start..end]) {
            *lower = octet.to_ascii_lowercase();
        }
        self.len = end;
        if !label.is_root() {
            self.starts[self.labels] = start as u8;
            self.labels += 1;
        }
    }

    /// Returns the name, for messages.
    ///
    /// # Panics
    /// Never: it was a name when it was copied.
    pub fn name(&self) -> &Name<[u8]> {
        Name::from_slice(&self.wire[..self.len]).expect("copied from a name")
    }

    /// Returns the number of labels, without the root label.
    pub fn labels(&self) -> usize {
        self.labels
    }

    /// Returns the label at `index`, from the left, in lower case; the leftmost has index 0.
    ///
    /// # Panics
    /// If there is no such label.
    pub fn label(&self, index: usize) -> &[u8] {
        let start = usize::from(self.starts[index]);
        &self.lower[start + 1..][..usize::from(self.wire[start])]
    }

    /// Returns the last `labels` labels and the root label as on the wire, in lower case.
    ///
    /// # Panics
    /// If the name has fewer.
    pub fn suffix(&self, labels: usize) -> &[u8] {
        let start = match labels {
            0 => self.len - 1,
            _ => usize::from(self.starts[self.labels - labels]),
        };
        &self.lower[start..self.len]
    }

    /// Returns whether this is `other` or a name below it.
    pub fn is_within(&self, other: &FlatName) -> bool {
        self.labels >= other.labels && self.suffix(other.labels) == &other.lower[..other.len]
    }
}

impl core::fmt::Debug for FlatName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.name())
    }
}

/// Copies a name to keep, as [`FlatName::new`].
///
/// # Panics
/// Never: as for [`FlatName::new`].
pub fn store(name: &(impl ToLabelIter + ?Sized)) -> StoredName {
    Name::from_octets(FlatName::new(name).name().as_slice().into()).expect("copied from a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(name: &str) -> FlatName {
        FlatName::new(&Name::vec_from_str(name).unwrap())
    }

    #[test]
    fn labels_and_suffixes_are_those_of_the_name_in_lower_case() {
        let name = flat("WWW.Example.");
        assert_eq!((name.labels(), name.label(0), name.label(1)), (2, &b"www"[..], &b"example"[..]));
        assert_eq!(name.suffix(0), b"\0");
        assert_eq!(name.suffix(1), b"\x07example\0");
        assert_eq!(name.suffix(2), b"\x03www\x07example\0");
        assert_eq!(name.name().as_slice(), b"\x03WWW\x07Example\0", "the case is kept");
        assert_eq!((flat(".").labels(), flat(".").suffix(0)), (0, &b"\0"[..]));
    }

    #[test]
    fn a_name_is_within_itself_its_ancestors_and_the_root_only() {
        let name = flat("a.b.example.");
        for ancestor in ["A.B.example.", "b.EXAMPLE.", "example.", "."] {
            assert!(name.is_within(&flat(ancestor)), "{ancestor}");
        }
        for other in ["x.a.b.example.", "a.c.example.", "xample.", "a."] {
            assert!(!name.is_within(&flat(other)), "{other}");
        }
    }

    #[test]
    fn a_name_is_replaced_as_a_whole() {
        let mut name = flat("A.long.example.");
        assert!(name.set(&Name::vec_from_str("b.").unwrap()));
        assert_eq!(
            (name.labels(), name.suffix(1), name.name().to_string()),
            (1, &b"\x01b\0"[..], "b".to_owned())
        );
    }

    #[test]
    fn names_are_joined_and_made_wildcards() {
        let name = flat("A.b.example.");
        assert_eq!(name.wildcard(2).name().to_string(), "*.b.example");
        assert_eq!(name.wildcard(0).name().to_string(), "*");
        let mut joined = FlatName::root();
        assert!(joined.set_joined(&name, 2, Name::vec_from_str("org.").unwrap().for_slice()));
        assert_eq!(joined.name().to_string(), "A.b.org");
        let long = format!("{0}.{0}.{0}.{1}.", "x".repeat(63), "y".repeat(59));
        let long = Name::vec_from_str(&long).unwrap();
        assert!(joined.set_joined(&name, 1, long.for_slice()), "255 octets");
        assert!(!joined.set_joined(&name, 2, long.for_slice()), "257 octets");
        assert_eq!(joined.labels(), 0);
    }

    #[test]
    fn the_longest_name_and_the_one_with_most_labels_fit() {
        let most = flat(&"a.".repeat(MAX_LABELS));
        assert_eq!((most.labels(), most.name().len()), (MAX_LABELS, MAX_NAME));
        let long = format!("{0}.{0}.{0}.{1}.", "x".repeat(63), "y".repeat(61));
        assert_eq!(flat(&long).name().len(), MAX_NAME);
        assert_eq!(flat(&long).suffix(4).len(), MAX_NAME);
    }
}
