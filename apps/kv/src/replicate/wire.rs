//! The bytes between a primary and a backup: handshake, changes, acknowledgments.
//!
//! Owns encoding and decoding, which have no effect and no sockets. Numbers are big-endian. Before
//! the last message of the handshake nothing that a peer sends is believed; after it a message that
//! is not one of these ends the connection.
//!
//! ```text
//! primary                                           backup
//! Preface: magic, version, nonce            <->     the same, with its own nonce
//! Proof of the secret, Hello                 ->
//!                                            <-     Verdict, its own proof
//! Reset, Schedule, then in any order:        ->
//!   Time | Item | Absent | Flush | Schedule | Mark
//!   Complete, once                           ->
//!                                            <-     Ack: the last Mark, and the copy's state
//! ```
//!
//! The proof is SipHash-2-4 with 128 bits over both nonces, keyed with the shared secret: it keeps
//! strangers out, but neither hides nor protects what follows.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::origin::{LINE, Origin, Refused};
use crate::store::{Image, MAX_KEY, Room};

/// First bytes of a connection. The last is the version of what follows.
const MAGIC: [u8; 8] = *b"TWKVREP\x02";
/// Bytes of a nonce, a secret, and a proof.
pub const NONCE: usize = 16;
/// Bytes of a preface.
pub const PREFACE: usize = MAGIC.len() + NONCE;
/// Bytes of a hello with its proof.
pub const HELLO: usize = NONCE + NUMBERS * 8 + 4 + 1;
/// Numbers of eight bytes in a hello.
const NUMBERS: usize = LINE + 4;
/// Bytes of a verdict with its proof.
pub const VERDICT: usize = 1 + NONCE;
/// Bytes of an acknowledgment.
pub const ACK: usize = 9;
/// Bytes of an item's head, without the kind.
const ITEM: usize = 27;

/// Returns the first message of either side.
pub fn preface(nonce: [u8; NONCE]) -> [u8; PREFACE] {
    let mut out = [0; PREFACE];
    out[..MAGIC.len()].copy_from_slice(&MAGIC);
    out[MAGIC.len()..].copy_from_slice(&nonce);
    out
}

/// Returns the nonce of a preface.
///
/// # Errors
/// If it is another protocol, or another version of this one; with what to do.
pub fn decode_preface(bytes: &[u8; PREFACE]) -> Result<[u8; NONCE], &'static str> {
    let (magic, nonce) = bytes.split_at(MAGIC.len());
    if magic[..MAGIC.len() - 1] != MAGIC[..MAGIC.len() - 1] {
        return Err(
            "it does not speak the protocol of replication; give the port after --backup, not that of clients",
        );
    }
    if magic != MAGIC {
        return Err(
            "it speaks another version of the protocol of replication; run the same release on both sides",
        );
    }
    Ok(nonce.try_into().expect("the rest is a nonce"))
}

/// What both sides know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; NONCE]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Digits of a secret.
    const DIGITS: usize = 2 * NONCE;

    /// Decodes 32 hexadecimal digits; white space around them is ignored.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() != Self::DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }

    /// Returns the secret of a hash function that only those know who know this one: stores that do
    /// not evict have it, so that keys that share a shard of a primary share one of its backups.
    ///
    /// # Examples
    ///
    /// ```
    /// use tailwater_kv::replicate::Secret;
    ///
    /// let [one, other] = ["5a", "5b"].map(|digits| Secret::decode(&digits.repeat(16)));
    /// assert_ne!(one.unwrap().hash_keys(), other.unwrap().hash_keys());
    /// ```
    #[must_use]
    pub fn hash_keys(&self) -> [u64; 2] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        // Shorter than what a proof hashes.
        hasher.write(b"hash");
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }

    fn proof(&self, of: u8, nonces: &Nonces, rest: &[u8]) -> [u8; NONCE] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for part in [&[of][..], &nonces.primary, &nonces.backup, rest] {
            hasher.write(part);
        }
        hasher.finish128().as_bytes()
    }
}

/// The nonces of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Nonces {
    /// The primary's.
    pub primary: [u8; NONCE],
    /// The backup's.
    pub backup: [u8; NONCE],
}

/// Compares in a time that does not depend on where the two differ.
fn equal(left: &[u8], right: &[u8]) -> bool {
    left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right)) == 0
}

/// What a primary says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Whose store it has.
    pub origin: Origin,
    /// Bytes of memory of its store.
    pub memory: u64,
    /// How that is divided.
    pub room: Room,
    /// Bytes of its largest item.
    pub max_item: u64,
    /// Milliseconds after which it believes a silent peer to be lost.
    pub timeout_ms: u32,
    /// True if its store evicts.
    pub evict: bool,
}

impl Hello {
    fn rest(&self) -> [u8; HELLO - NONCE] {
        let mut out = [0; HELLO - NONCE];
        let Room { shards, cells } = self.room;
        let numbers = self.origin.line.into_iter().chain([self.memory, shards, cells, self.max_item]);
        let (eights, others) = out.split_at_mut(NUMBERS * 8);
        for (to, number) in eights.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_be_bytes());
        }
        others[..4].copy_from_slice(&self.timeout_ms.to_be_bytes());
        others[4] = self.evict.into();
        out
    }

    /// Returns the message, with its proof.
    #[must_use]
    pub fn encode(&self, secret: &Secret, nonces: &Nonces) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        out[NONCE..].copy_from_slice(&self.rest());
        out[..NONCE].copy_from_slice(&secret.proof(b'P', nonces, &self.rest()));
        out
    }

    /// Returns a message with a valid proof; `None` if the proof is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8; HELLO], secret: &Secret, nonces: &Nonces) -> Option<Self> {
        let (proof, rest) = bytes.split_at(NONCE);
        if !equal(proof, &secret.proof(b'P', nonces, rest)) {
            return None;
        }
        let (eights, others) = rest.split_at(NUMBERS * 8);
        let number = |at: usize| u64::from_be_bytes(eights[at * 8..][..8].try_into().expect("eight bytes"));
        let origin = Origin { line: std::array::from_fn(number) };
        let [memory, shards, cells, max_item] = std::array::from_fn(|at| number(LINE + at));
        let timeout_ms = u32::from_be_bytes(others[..4].try_into().expect("four bytes"));
        let (room, evict) = (Room { shards, cells }, others[4] == 1);
        Some(Self { origin, memory, room, max_item, timeout_ms, evict })
    }
}

/// A backup's answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// It takes the copy.
    Welcome = 0,
    /// The proof is wrong.
    WrongSecret = 1,
    /// It is no backup any more.
    Promoted = 2,
    /// It has a primary, which is another one.
    Taken = 3,
    /// Its store is smaller, or treats a full memory differently.
    Smaller = 4,
    /// It has a copy of a primary that was promoted after this one.
    Superseded = 5,
    /// It has a complete copy of another store.
    Keeps = 6,
}

impl From<Refused> for Verdict {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Taken => Self::Taken,
            Refused::Superseded => Self::Superseded,
            Refused::Keeps => Self::Keeps,
        }
    }
}

impl Verdict {
    /// Returns what a backup reports about a primary that it refuses.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Welcome => "it is welcome",
            Self::WrongSecret => "it has another secret",
            Self::Promoted => "this was promoted",
            Self::Taken => "another primary is connected",
            Self::Smaller => {
                "its store is larger, or differs in -M; start this one with the same -m, -I and -M"
            }
            Self::Superseded => "this has a copy of a primary that was promoted after it",
            Self::Keeps => {
                "it has another store, and this keeps a complete copy; promote this with SIGUSR1, or restart it to \
                 give the copy up"
            }
        }
    }

    /// Returns the message, with the proof of a welcome.
    #[must_use]
    pub fn encode(self, secret: &Secret, nonces: &Nonces) -> [u8; VERDICT] {
        let mut out = [0; VERDICT];
        out[0] = self as u8;
        if self == Self::Welcome {
            out[1..].copy_from_slice(&secret.proof(b'B', nonces, &[]));
        }
        out
    }

    /// Checks that a backup takes the copy.
    ///
    /// # Errors
    /// Why it does not, with what to do.
    pub fn check(bytes: &[u8; VERDICT], secret: &Secret, nonces: &Nonces) -> Result<(), &'static str> {
        match bytes[0] {
            0 if equal(&bytes[1..], &secret.proof(b'B', nonces, &[])) => Ok(()),
            0 | 1 => Err("it has another secret; give both sides the same --secret"),
            2 => Err(
                "it was promoted and is a primary now; stop this one, and start it with --backup to make it a backup",
            ),
            3 => Err("it is the backup of another primary; end that one, or give another backup"),
            4 => Err(
                "its store is smaller, or differs in -M; start it with at least the same -m and -I, and the same -M; \
                 with -M, exactly the same -m and -I",
            ),
            5 => Err(
                "it has a copy of a backup that was promoted after this primary began; stop this one, which is out \
                 of date, and start it with --backup to make it a backup",
            ),
            6 => Err(
                "it keeps the complete copy of another primary, which this one would erase; promote it with SIGUSR1, \
                 or restart it to give the copy up",
            ),
            _ => Err("its answer is unknown; run the same release on both sides"),
        }
    }
}

/// An acknowledgment: everything up to the last mark is in the backup's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The last mark.
    pub number: u64,
    /// The state of the copy.
    pub state: AckState,
}

/// The state of a backup's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AckState {
    /// Not complete.
    Copying = 0,
    /// Complete.
    InStep = 1,
    /// Ended, because an item found no room.
    NoRoom = 2,
}

impl Ack {
    /// Returns the message.
    #[must_use]
    pub fn encode(self) -> [u8; ACK] {
        let mut out = [0; ACK];
        out[..8].copy_from_slice(&self.number.to_be_bytes());
        out[8] = self.state as u8;
        out
    }

    /// Returns a valid message.
    #[must_use]
    pub fn decode(bytes: &[u8; ACK]) -> Option<Self> {
        let number = u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
        let state = [AckState::Copying, AckState::InStep, AckState::NoRoom].get(usize::from(bytes[8]))?;
        Some(Self { number, state: *state })
    }
}

/// A message of a primary; the value of an item follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Forget all items: a copy begins.
    Reset,
    /// The clock of the primary's store, as Unix time, is at least this: it may have used the room
    /// of items that have expired by then for the next ones.
    Time(i64),
    /// The key has this item.
    Item(&'a [u8], Image),
    /// The key has none.
    Absent(&'a [u8]),
    /// All items are dead.
    Flush,
    /// A flush is scheduled for this Unix time; 0 for none.
    Schedule(i64),
    /// All changes up to this number were sent.
    Mark(u64),
    /// The copy is complete.
    Complete,
}

/// Bits of an item's state.
const STALE: u8 = 1;
const TOKEN_SENT: u8 = 2;
const BINARY_KEY: u8 = 4;

impl Message<'_> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Reset => out.push(b'R'),
            Self::Item(key, image) => {
                out.push(b'I');
                let bits =
                    [(image.stale, STALE), (image.token_sent, TOKEN_SENT), (image.binary_key, BINARY_KEY)];
                out.push(bits.into_iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit));
                out.push(key.len() as u8);
                out.push(image.expires.is_some().into());
                out.extend_from_slice(&image.expires.unwrap_or_default().to_be_bytes());
                out.extend_from_slice(&image.flags.to_be_bytes());
                out.extend_from_slice(&image.cas.to_be_bytes());
                out.extend_from_slice(&(image.value_len as u32).to_be_bytes());
                out.extend_from_slice(key);
            }
            Self::Absent(key) => {
                out.extend_from_slice(&[b'A', key.len() as u8]);
                out.extend_from_slice(key);
            }
            Self::Time(unix) => {
                out.push(b'T');
                out.extend_from_slice(&unix.to_be_bytes());
            }
            Self::Flush => out.push(b'F'),
            Self::Schedule(unix) => {
                out.push(b'S');
                out.extend_from_slice(&unix.to_be_bytes());
            }
            Self::Mark(number) => {
                out.push(b'M');
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::Complete => out.push(b'C'),
        }
    }
}

/// A message is not one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of the primary is invalid")]
pub struct Invalid;

/// Reads a message with `fill`, which fills a buffer completely. The key of an item is read into
/// `key`.
///
/// # Errors
/// Those of `fill`; [`Invalid`], converted.
pub fn read<'k, E: From<Invalid>>(
    key: &'k mut [u8; MAX_KEY],
    mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<Message<'k>, E> {
    let mut byte = [0];
    fill(&mut byte)?;
    let mut eight = [0; 8];
    Ok(match byte[0] {
        b'R' => Message::Reset,
        b'F' => Message::Flush,
        b'C' => Message::Complete,
        b'M' => {
            fill(&mut eight)?;
            Message::Mark(u64::from_be_bytes(eight))
        }
        b'T' => {
            fill(&mut eight)?;
            Message::Time(i64::from_be_bytes(eight))
        }
        b'S' => {
            fill(&mut eight)?;
            Message::Schedule(i64::from_be_bytes(eight))
        }
        b'A' => {
            fill(&mut byte)?;
            let key = key.get_mut(..usize::from(byte[0])).ok_or(Invalid)?;
            fill(key)?;
            Message::Absent(key)
        }
        b'I' => {
            let mut head = [0; ITEM];
            fill(&mut head)?;
            let key = key.get_mut(..usize::from(head[1])).ok_or(Invalid)?;
            fill(key)?;
            Message::Item(key, image(&head)?)
        }
        _ => return Err(Invalid.into()),
    })
}

fn image(head: &[u8; ITEM]) -> Result<Image, Invalid> {
    let [state, _, expires] = [head[0], head[1], head[2]];
    if state > STALE | TOKEN_SENT | BINARY_KEY || expires > 1 {
        return Err(Invalid);
    }
    let eight = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let four = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    Ok(Image {
        stale: state & STALE != 0,
        token_sent: state & TOKEN_SENT != 0,
        binary_key: state & BINARY_KEY != 0,
        expires: (expires == 1).then_some(eight(3) as i64),
        flags: four(11),
        cas: eight(15),
        value_len: four(23) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONCES: Nonces = Nonces { primary: [1; NONCE], backup: [2; NONCE] };

    fn secret(digit: &str) -> Secret {
        Secret::decode(&digit.repeat(32)).unwrap()
    }

    fn decode<'k>(bytes: &mut &[u8], key: &'k mut [u8; MAX_KEY]) -> Result<Message<'k>, Invalid> {
        read(key, |to| {
            let (now, later) = bytes.split_at_checked(to.len()).ok_or(Invalid)?;
            to.copy_from_slice(now);
            *bytes = later;
            Ok(())
        })
    }

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let image = Image {
            flags: 7,
            cas: u64::MAX,
            expires: Some(1_700_000_000),
            stale: true,
            token_sent: false,
            binary_key: true,
            value_len: 1 << 30,
        };
        let sent = [
            Message::Reset,
            Message::Time(1_700_000_000),
            Message::Item(b"key", image),
            Message::Item(&[b'k'; MAX_KEY], Image { expires: None, token_sent: true, ..image }),
            Message::Absent(b"other"),
            Message::Flush,
            Message::Schedule(-1),
            Message::Mark(u64::MAX - 1),
            Message::Complete,
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|message| message.encode(&mut bytes));
        let mut rest = &bytes[..];
        for message in sent {
            assert_eq!(decode(&mut rest, &mut [0; MAX_KEY]), Ok(message));
        }
        assert!(rest.is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = decode(&mut &bytes[..], &mut [0; MAX_KEY]) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert!(bytes.starts_with(&again) || matches!(message, Message::Item(..)));
            }
        }
    }

    #[test]
    fn only_those_who_know_the_secret_are_believed() {
        let hello = Hello {
            origin: Origin::begin(1).promoted(5),
            memory: 2,
            room: Room { shards: 6, cells: 7 },
            max_item: 3,
            timeout_ms: 4,
            evict: true,
        };
        let bytes = hello.encode(&secret("a"), &NONCES);
        assert_eq!(Hello::decode(&bytes, &secret("a"), &NONCES), Some(hello));
        assert_eq!(Hello::decode(&bytes, &secret("b"), &NONCES), None);
        let replayed = Nonces { backup: [3; NONCE], ..NONCES };
        assert_eq!(Hello::decode(&bytes, &secret("a"), &replayed), None);
        let mut changed = bytes;
        changed[HELLO - 1] = 0;
        assert_eq!(Hello::decode(&changed, &secret("a"), &NONCES), None);
        let welcome = Verdict::Welcome.encode(&secret("a"), &NONCES);
        assert_eq!(Verdict::check(&welcome, &secret("a"), &NONCES), Ok(()));
        let error = Verdict::check(&welcome, &secret("b"), &NONCES).unwrap_err();
        assert!(error.contains("--secret"), "{error}");
        for (verdict, advice) in [
            (Verdict::Promoted, "stop this one"),
            (Verdict::Taken, "another primary"),
            (Verdict::Smaller, "-m"),
            (Verdict::Superseded, "stop this one"),
            (Verdict::Keeps, "SIGUSR1"),
        ] {
            let bytes = verdict.encode(&secret("a"), &NONCES);
            assert!(Verdict::check(&bytes, &secret("a"), &NONCES).unwrap_err().contains(advice));
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let mut bytes = preface([9; NONCE]);
        assert_eq!(decode_preface(&bytes), Ok([9; NONCE]));
        for other in [1, 3] {
            bytes[7] = other;
            assert!(decode_preface(&bytes).unwrap_err().contains("version"));
        }
        assert!(decode_preface(b"get a\r\nget b\r\nget c\r\nget").unwrap_err().contains("port"));
    }

    #[test]
    fn a_secret_is_128_bits() {
        assert!(Secret::decode(&format!(" {}\n", "0f".repeat(16))).is_some());
        for wrong in
            ["", "0f", &"0f".repeat(17), &"0g".repeat(16), &format!("+{}", "0f".repeat(16)[1..].to_owned())]
        {
            assert!(Secret::decode(wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{:?}", secret("a")), "Secret(..)");
    }
}
