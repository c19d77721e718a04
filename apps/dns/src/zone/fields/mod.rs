//! Presentation formats of types that the reader of `domain` does not know, or not whole.
//!
//! Owns a table of their fields, and the data they make; [`special`] and [`bindings`] have formats
//! of single types. The formats are those of the RFCs; where these leave it open, of BIND 9.

mod bindings;
mod special;

use core::net::Ipv4Addr;
use core::str::FromStr;

use domain::base::iana::Rtype;
use domain::base::name::Name;
use domain::rdata::dnssec::{RtypeBitmapBuilder, Timestamp};
use domain::utils::{base16, base64};

use super::words::{Word, seconds};

/// A part of a record's data.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    U8,
    U16,
    U32,
    /// An algorithm of DNSSEC by number or mnemonic.
    Algorithm,
    /// A kind of digest of a key by number or mnemonic.
    Digest,
    /// A scheme of notifications (RFC 9859, section 2.1).
    Scheme,
    /// A kind of certificate (RFC 4398, section 2.1).
    Certificate,
    /// A type of records.
    Type,
    /// A time in s, with units.
    Seconds,
    /// A point in time (RFC 4034, section 3.2).
    Time,
    /// A name, never compressed.
    Name,
    /// A text of up to 255 octets.
    Text,
    /// One or more texts, to the end.
    Texts,
    /// A text to the end of the data, without its length (RFC 7553).
    Raw,
    /// Hexadecimal digits to the end, with or without dots and `0x`.
    Hex,
    /// Base64 to the end, or `-` for nothing.
    Base64,
    Ipv4,
    /// Four groups of hexadecimal digits (RFC 6742).
    Locator,
    /// So many octets, with dashes between them (RFC 7043).
    Eui(usize),
    /// Types as a bitmap (RFC 4034, section 4.1.2), to the end.
    Types,
    /// Types as the bitmap of NXT records (RFC 2535, section 5.2), to the end.
    OldTypes,
    /// Data with a format of their own, to the end.
    Own(fn(&mut Data<'_>) -> Result<(), String>),
}

use Field::{
    Algorithm, Base64, Certificate, Digest, Eui, Hex, Locator, Name as N, OldTypes, Own, Raw, Scheme,
    Seconds, Text, Texts, Time, Type, Types, U8, U16, U32,
};

/// Number, mnemonic and fields.
const TYPES: &[(u16, &str, &[Field])] = &[
    (11, "WKS", &[Field::Ipv4, Own(special::services)]),
    (18, "AFSDB", &[U16, N]),
    (19, "X25", &[Text]),
    (20, "ISDN", &[Texts]),
    (21, "RT", &[U16, N]),
    (22, "NSAP", &[Hex]),
    (23, "NSAP-PTR", &[N]),
    (24, "SIG", &[Type, Algorithm, U8, Seconds, Time, Time, U16, N, Base64]),
    (25, "KEY", &[U16, U8, Algorithm, Base64]),
    (26, "PX", &[U16, N, N]),
    (27, "GPOS", &[Text, Text, Text]),
    (29, "LOC", &[Own(special::location)]),
    (30, "NXT", &[N, OldTypes]),
    (31, "EID", &[Hex]),
    (32, "NIMLOC", &[Hex]),
    (34, "ATMA", &[Own(special::atm_address)]),
    (36, "KX", &[U16, N]),
    (37, "CERT", &[Certificate, U16, Algorithm, Base64]),
    (38, "A6", &[Own(special::a6)]),
    (40, "SINK", &[U8, U8, U8, Base64]),
    (42, "APL", &[Own(special::prefixes)]),
    (49, "DHCID", &[Base64]),
    (53, "SMIMEA", &[U8, U8, U8, Hex]),
    (55, "HIP", &[Own(special::host_identity)]),
    (56, "NINFO", &[Texts]),
    (57, "RKEY", &[U16, U8, Algorithm, Base64]),
    (58, "TALINK", &[N, N]),
    (62, "CSYNC", &[U32, U16, Types]),
    (64, "SVCB", &[U16, N, Own(bindings::parameters)]),
    (65, "HTTPS", &[U16, N, Own(bindings::parameters)]),
    (66, "DSYNC", &[Type, Scheme, U16, N]),
    (67, "HHIT", &[Base64]),
    (68, "BRID", &[Base64]),
    (99, "SPF", &[Texts]),
    (104, "NID", &[U16, Locator]),
    (105, "L32", &[U16, Field::Ipv4]),
    (106, "L64", &[U16, Locator]),
    (107, "LP", &[U16, N]),
    (108, "EUI48", &[Eui(6)]),
    (109, "EUI64", &[Eui(8)]),
    (256, "URI", &[U16, U16, Raw]),
    (258, "AVC", &[Texts]),
    (259, "DOA", &[U32, U32, U8, Text, Base64]),
    (260, "AMTRELAY", &[Own(special::relay)]),
    (261, "RESINFO", &[Texts]),
    (262, "WALLET", &[Texts]),
    (32768, "TA", &[U16, Algorithm, Digest, Hex]),
    (32769, "DLV", &[U16, Algorithm, Digest, Hex]),
];

/// Returns the number and the fields of a type of the table, by mnemonic or as `TYPE36`.
pub fn find(mnemonic: &[u8]) -> Option<(u16, &'static [Field])> {
    let number = mnemonic.get(..4).filter(|front| front.eq_ignore_ascii_case(b"TYPE"));
    let number = number.and_then(|_| core::str::from_utf8(&mnemonic[4..]).ok()?.parse().ok());
    let found = TYPES
        .iter()
        .find(|(of, name, _)| Some(*of) == number || mnemonic.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(number, _, fields)| (*number, *fields))
}

/// Mnemonics of the algorithms of DNSSEC.
const ALGORITHMS: [(&str, u8); 16] = [
    ("RSAMD5", 1),
    ("DH", 2),
    ("DSA", 3),
    ("RSASHA1", 5),
    ("NSEC3DSA", 6),
    ("NSEC3RSASHA1", 7),
    ("RSASHA256", 8),
    ("RSASHA512", 10),
    ("ECCGOST", 12),
    ("ECDSAP256SHA256", 13),
    ("ECDSAP384SHA384", 14),
    ("ED25519", 15),
    ("ED448", 16),
    ("INDIRECT", 252),
    ("PRIVATEDNS", 253),
    ("PRIVATEOID", 254),
];

/// Returns the number of an algorithm of DNSSEC that is given by its mnemonic.
pub fn algorithm(mnemonic: &[u8]) -> Option<u8> {
    let found = ALGORITHMS.iter().find(|(name, _)| mnemonic.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, number)| *number)
}

/// Returns the number of a kind of digest of a key (RFC 4034, appendix A.2) that is given by its
/// mnemonic, with or without the dash.
pub fn digest(mnemonic: &[u8]) -> Option<u8> {
    let letters: Vec<u8> = mnemonic.iter().copied().filter(|octet| *octet != b'-').collect();
    match letters.to_ascii_uppercase().as_slice() {
        b"SHA1" => Some(1),
        b"SHA256" => Some(2),
        b"GOST" => Some(3),
        b"SHA384" => Some(4),
        _ => None,
    }
}

/// Returns the data that the words of a record stand for.
///
/// # Errors
/// What is wrong with them.
pub fn compose(fields: &[Field], words: &[Word<'_>], origin: &Name<[u8]>) -> Result<Vec<u8>, String> {
    let mut data = Data { words, origin, wire: Vec::new() };
    fields.iter().try_for_each(|field| data.field(*field))?;
    match data.words.first() {
        Some(word) => Err(format!("`{}` follows the data", shown(word))),
        None => Ok(data.wire),
    }
}

/// The rest of a record's words, and the data so far.
#[derive(Debug)]
pub struct Data<'a> {
    words: &'a [Word<'a>],
    origin: &'a Name<[u8]>,
    wire: Vec<u8>,
}

impl<'a> Data<'a> {
    fn field(&mut self, field: Field) -> Result<(), String> {
        match field {
            Field::U8 => self.number::<u8>("a number up to 255").map(|number| self.wire.push(number)),
            Field::U16 => {
                self.number::<u16>("a number up to 65535").map(|number| self.put(number.to_be_bytes()))
            }
            Field::U32 => self.number::<u32>("a number").map(|number| self.put(number.to_be_bytes())),
            Field::Algorithm => {
                let word = self.next()?;
                let number = algorithm(word.text).or_else(|| parse(word.text));
                self.wire.push(number.ok_or_else(|| expected("an algorithm of DNSSEC", word))?);
                Ok(())
            }
            Field::Digest => {
                let word = self.next()?;
                let number = digest(word.text).or_else(|| parse(word.text));
                self.wire.push(number.ok_or_else(|| expected("a kind of digest", word))?);
                Ok(())
            }
            Field::Scheme => {
                let word = self.next()?;
                let scheme =
                    if word.text.eq_ignore_ascii_case(b"NOTIFY") { Some(1) } else { parse(word.text) };
                self.wire.push(scheme.ok_or_else(|| expected("NOTIFY, or the number of a scheme", word))?);
                Ok(())
            }
            Field::Certificate => self.certificate(),
            Field::Type => {
                let rtype = self.number::<Rtype>("a type of records")?;
                self.put(rtype.to_int().to_be_bytes());
                Ok(())
            }
            Field::Seconds => {
                let word = self.next()?;
                let time = seconds(word.text).ok_or_else(|| expected("a time in s", word))?;
                self.put(time.to_be_bytes());
                Ok(())
            }
            Field::Time => {
                let time = self.number::<Timestamp>("a time, as 20300131120000")?;
                self.put(time.into_int().to_be_bytes());
                Ok(())
            }
            Field::Name => self.name(),
            Field::Text => self.next().and_then(|word| self.text(word)),
            Field::Texts => {
                let word = self.next()?;
                self.text(word)?;
                core::mem::take(&mut self.words).iter().try_for_each(|word| self.text(word))
            }
            Field::Raw => {
                let text = unescape(self.next()?.text)?;
                self.put(text);
                Ok(())
            }
            Field::Hex => self.hex(),
            Field::Base64 => self.base64(),
            Field::Ipv4 => {
                self.number::<Ipv4Addr>("an IPv4 address").map(|address| self.put(address.octets()))
            }
            Field::Locator => self.groups(4, b':', 4),
            Field::Eui(octets) => self.groups(octets, b'-', 2),
            Field::Types => {
                let mut types = RtypeBitmapBuilder::new_vec();
                while !self.words.is_empty() {
                    let Ok(()) = types.add(self.number("a type of records")?);
                }
                self.put(types.finalize().as_slice());
                Ok(())
            }
            Field::OldTypes => self.old_types(),
            Field::Own(compose) => compose(self),
        }
    }

    fn put(&mut self, octets: impl AsRef<[u8]>) {
        self.wire.extend_from_slice(octets.as_ref());
    }

    fn next(&mut self) -> Result<&'a Word<'a>, String> {
        let (word, rest) = self.words.split_first().ok_or("the data end too early")?;
        self.words = rest;
        Ok(word)
    }

    /// Reads a word as any type that is made from a text.
    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.next()?;
        parse(word.text).ok_or_else(|| expected(what, word))
    }

    fn certificate(&mut self) -> Result<(), String> {
        const KINDS: [(&str, u16); 10] = [
            ("PKIX", 1),
            ("SPKI", 2),
            ("PGP", 3),
            ("IPKIX", 4),
            ("ISPKI", 5),
            ("IPGP", 6),
            ("ACPKIX", 7),
            ("IACPKIX", 8),
            ("URI", 253),
            ("OID", 254),
        ];
        let word = self.next()?;
        let kind = KINDS.iter().find(|(name, _)| word.text.eq_ignore_ascii_case(name.as_bytes()));
        let kind = kind.map(|(_, number)| *number).or_else(|| parse::<u16>(word.text));
        self.put(kind.ok_or_else(|| expected("a kind of certificate", word))?.to_be_bytes());
        Ok(())
    }

    fn text(&mut self, word: &Word<'_>) -> Result<(), String> {
        let text = unescape(word.text)?;
        let len = u8::try_from(text.len()).map_err(|_| "a text of more than 255 octets".to_owned())?;
        self.wire.push(len);
        self.put(text);
        Ok(())
    }

    fn name(&mut self) -> Result<(), String> {
        let word = self.next()?;
        if word.text == b"@" && !word.quoted {
            self.put(self.origin.as_slice());
            return Ok(());
        }
        let begin = self.wire.len();
        if word.text != b"." {
            self.labels(word)?;
        }
        match ends_with_dot(word.text) {
            true => self.wire.push(0),
            false => self.put(self.origin.as_slice()),
        }
        match self.wire.len() - begin <= 255 {
            true => Ok(()),
            false => Err(format!("the name `{}` has more than 255 octets", shown(word))),
        }
    }

    fn labels(&mut self, word: &Word<'_>) -> Result<(), String> {
        let mut rest = word.text;
        while !rest.is_empty() {
            let start = self.wire.len();
            self.wire.push(0);
            while let Some((octet, literal, after)) = symbol(rest)? {
                rest = after;
                if octet == b'.' && !literal {
                    break;
                }
                self.wire.push(octet);
            }
            let len = self.wire.len() - start - 1;
            if !(1..=63).contains(&len) {
                return Err(format!("`{}` is not a name", shown(word)));
            }
            self.wire[start] = len as u8;
        }
        Ok(())
    }

    fn hex(&mut self) -> Result<(), String> {
        let mut digits = String::new();
        while !self.words.is_empty() {
            let word = self.next()?;
            let text = match word.text {
                [b'0', b'x' | b'X', rest @ ..] if digits.is_empty() => rest,
                text => text,
            };
            digits.extend(text.iter().filter(|octet| **octet != b'.').map(|octet| char::from(*octet)));
        }
        let octets: Vec<u8> =
            base16::decode(&digits).map_err(|_| format!("`{digits}` is not hexadecimal"))?;
        match octets.is_empty() {
            true => Err("the data end too early".to_owned()),
            false => {
                self.put(octets);
                Ok(())
            }
        }
    }

    fn base64(&mut self) -> Result<(), String> {
        let mut digits = String::new();
        while !self.words.is_empty() {
            digits.extend(self.next()?.text.iter().map(|octet| char::from(*octet)));
        }
        if digits == "-" {
            return Ok(());
        }
        let octets: Vec<u8> = base64::decode(&digits).map_err(|_| format!("`{digits}` is not base64"))?;
        self.put(octets);
        Ok(())
    }

    /// Reads `count` hexadecimal groups of up to `digits` digits, half as many octets each.
    fn groups(&mut self, count: usize, between: u8, digits: usize) -> Result<(), String> {
        let word = self.next()?;
        let groups: Vec<_> = word.text.split(|octet| *octet == between).collect();
        let group = |text: &[u8]| {
            let fits = (1..=digits).contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit);
            u16::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok().filter(|_| fits)
        };
        let values: Option<Vec<u16>> = groups.into_iter().map(group).collect();
        let Some(values) = values.filter(|values| values.len() == count) else {
            return Err(expected("groups of hexadecimal digits", word));
        };
        for value in values {
            self.put(&value.to_be_bytes()[2 - digits / 2..]);
        }
        Ok(())
    }

    fn old_types(&mut self) -> Result<(), String> {
        let mut bitmap = [0u8; 16];
        while !self.words.is_empty() {
            let rtype = usize::from(self.number::<Rtype>("a type of records")?.to_int());
            let octet = bitmap.get_mut(rtype / 8).ok_or("types of NXT records are below 128")?;
            *octet |= 0x80 >> (rtype % 8);
        }
        let len = bitmap.iter().rposition(|octet| *octet != 0).map_or(0, |at| at + 1);
        self.put(&bitmap[..len]);
        Ok(())
    }
}

fn parse<T: FromStr>(text: &[u8]) -> Option<T> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn shown(word: &Word<'_>) -> String {
    String::from_utf8_lossy(word.text).into_owned()
}

fn expected(what: &str, word: &Word<'_>) -> String {
    format!("`{}` instead of {what}", shown(word))
}

/// An octet of a text, whether it was escaped, and the rest of the text.
type Symbol<'a> = (u8, bool, &'a [u8]);

/// Returns the first octet of a text, whether it was escaped, and the rest (RFC 1035, section 5.1).
fn symbol(text: &[u8]) -> Result<Option<Symbol<'_>>, String> {
    Ok(match text {
        [] => None,
        [b'\\', digits @ ..] if digits.first().is_some_and(u8::is_ascii_digit) => {
            let number = digits.get(..3).and_then(parse::<u8>);
            Some((number.ok_or("a backslash and not three digits up to 255")?, true, &digits[3..]))
        }
        [b'\\', octet, rest @ ..] => Some((*octet, true, rest)),
        [b'\\'] => return Err("a backslash at the end".to_owned()),
        [octet, rest @ ..] => Some((*octet, false, rest)),
    })
}

/// Returns the octets of a text, without escapes.
///
/// # Errors
/// If an escape is not complete.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let (mut octets, mut rest) = (Vec::new(), text);
    while let Some((octet, _, after)) = symbol(rest)? {
        octets.push(octet);
        rest = after;
    }
    Ok(octets)
}

/// Returns whether a name ends with a dot that is not escaped.
fn ends_with_dot(text: &[u8]) -> bool {
    let Some((b'.', front)) = text.split_last() else { return false };
    front.iter().rev().take_while(|octet| **octet == b'\\').count() % 2 == 0
}
