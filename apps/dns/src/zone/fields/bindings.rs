//! Parameters of SVCB and HTTPS records (RFC 9460, section 2.1 and appendix A).
//!
//! Owns the keys by name, the formats of their values, and the rules between parameters of one
//! record. The value of a key given by its number (`key1=`) is the octets themselves.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use domain::utils::base64;

use super::{Data, Word, expected, parse, shown, unescape};

/// Keys by name (IANA, Service Parameter Keys).
const KEYS: [(&str, u16); 10] = [
    ("mandatory", MANDATORY),
    ("alpn", ALPN),
    ("no-default-alpn", NO_DEFAULT_ALPN),
    ("port", 3),
    ("ipv4hint", 4),
    ("ech", 5),
    ("ipv6hint", 6),
    ("dohpath", 7),
    ("ohttp", 8),
    ("tls-supported-groups", 9),
];

const MANDATORY: u16 = 0;
const ALPN: u16 = 1;
const NO_DEFAULT_ALPN: u16 = 2;

/// Reads the parameters of a record; they may have any order, and are written in that of their
/// keys.
pub fn parameters(data: &mut Data<'_>) -> Result<(), String> {
    let mut parameters = BTreeMap::new();
    while !data.words.is_empty() {
        let word = data.next()?;
        let (name, value) = split(data, word)?;
        let key = key(name).ok_or_else(|| expected("the key of a parameter", word))?;
        let value = match name.starts_with(b"key") {
            true => value,
            false => compose(key, &value, word)?,
        };
        if parameters.insert(key, value).is_some() {
            return Err(format!("the key of `{}` has a value already", shown(word)));
        }
    }
    check(&parameters)?;
    for (key, value) in parameters {
        let len = u16::try_from(value.len()).map_err(|_| "a parameter of more than 65535 octets")?;
        data.put(key.to_be_bytes());
        data.put(len.to_be_bytes());
        data.put(value);
    }
    Ok(())
}

/// Returns the key and the value of a parameter, without escapes. A value in quotation marks is a
/// word of its own, right behind the equals sign.
fn split<'a>(data: &mut Data<'a>, word: &'a Word<'a>) -> Result<(&'a [u8], Vec<u8>), String> {
    let Some(equals) = word.text.iter().position(|octet| *octet == b'=') else {
        return Ok((word.text, Vec::new()));
    };
    let (name, value) = (&word.text[..equals], &word.text[equals + 1..]);
    match data.words.first() {
        Some(quoted) if value.is_empty() && quoted.quoted && quoted.adjoins(word) => {
            data.words = &data.words[1..];
            Ok((name, unescape(quoted.text)?))
        }
        _ => Ok((name, unescape(value)?)),
    }
}

/// Returns the number of a key; `key7` is 7, without zeros in front.
fn key(name: &[u8]) -> Option<u16> {
    match name.strip_prefix(b"key") {
        Some(digits) if digits == b"0" || !digits.starts_with(b"0") => parse(digits),
        Some(_) => None,
        None => KEYS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, number)| *number),
    }
}

/// Returns the octets of a value.
fn compose(key: u16, value: &[u8], word: &Word<'_>) -> Result<Vec<u8>, String> {
    let composed = match key {
        MANDATORY => mandatory(value),
        ALPN => protocols(value),
        3 => parse::<u16>(value).map(|port| port.to_be_bytes().to_vec()),
        4 => list(value, |item| parse::<Ipv4Addr>(item).map(|address| address.octets().to_vec())),
        5 => core::str::from_utf8(value).ok().and_then(|text| base64::decode(text).ok()),
        6 => list(value, |item| parse::<Ipv6Addr>(item).map(|address| address.octets().to_vec())),
        9 => list(value, |item| parse::<u16>(item).map(|group| group.to_be_bytes().to_vec())),
        NO_DEFAULT_ALPN | 8 => value.is_empty().then(Vec::new),
        _ => (!value.is_empty()).then(|| value.to_vec()),
    };
    composed.ok_or_else(|| format!("the value of `{}` does not fit its key", shown(word)))
}

/// Returns the values of a list with commas between them, put together.
fn list(value: &[u8], item: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let items: Option<Vec<Vec<u8>>> = value.split(|octet| *octet == b',').map(item).collect();
    items.map(|items| items.concat())
}

/// Returns the keys of a list in ascending order, as section 8 requires.
fn mandatory(value: &[u8]) -> Option<Vec<u8>> {
    let keys: Option<Vec<u16>> = value.split(|octet| *octet == b',').map(key).collect();
    let mut keys = keys?;
    let given = keys.len();
    keys.sort_unstable();
    keys.dedup();
    let fits = keys.len() == given && !keys.contains(&MANDATORY);
    fits.then(|| keys.into_iter().flat_map(u16::to_be_bytes).collect())
}

/// Returns protocol identifiers, each with its length. In the list, a backslash stands before a
/// comma or backslash of an identifier (appendix A.1).
fn protocols(value: &[u8]) -> Option<Vec<u8>> {
    let (mut items, mut item, mut rest) = (Vec::new(), Vec::new(), value);
    loop {
        match rest {
            [b'\\', octet @ (b'\\' | b','), after @ ..] => {
                item.push(*octet);
                rest = after;
            }
            [b'\\', ..] => return None,
            [] | [b',', ..] => {
                items.push(u8::try_from(item.len()).ok().filter(|len| *len > 0)?);
                items.append(&mut item);
                match rest.split_first() {
                    Some((_, after)) => rest = after,
                    None => return Some(items),
                }
            }
            [octet, after @ ..] => {
                item.push(*octet);
                rest = after;
            }
        }
    }
}

/// Checks that a record is consistent in itself (sections 7.1.1 and 8).
fn check(parameters: &BTreeMap<u16, Vec<u8>>) -> Result<(), String> {
    let mandatory = parameters.get(&MANDATORY).map_or(&[][..], Vec::as_slice);
    for pair in mandatory.as_chunks::<2>().0 {
        let key = u16::from_be_bytes(*pair);
        if !parameters.contains_key(&key) {
            let name = KEYS.iter().find(|(_, number)| *number == key).map(|(name, _)| (*name).to_owned());
            return Err(format!("`{}` is mandatory and has no value", name.unwrap_or(format!("key{key}"))));
        }
    }
    match parameters.contains_key(&NO_DEFAULT_ALPN) && !parameters.contains_key(&ALPN) {
        true => Err("`no-default-alpn` needs `alpn` beside it".to_owned()),
        false => Ok(()),
    }
}
