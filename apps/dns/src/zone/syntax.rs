//! Syntax of master files beyond that which the reader of `domain` understands.
//!
//! Owns the translation of an entry into that reader's syntax: octets above 127, `@` in data,
//! times with units (`1h30m`), algorithms and digests of DNSSEC by name, names of files in
//! quotation marks, and data of types that it reads as octets only ([`fields`](super::fields)),
//! which become `\# LENGTH OCTETS` (RFC 3597, section 5). Entries without any of these stay as they
//! are.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use domain::base::iana::Rtype;
use domain::base::name::{Name, ToLabelIter};

use super::fields;
use super::words::{Word, is_between, seconds, words};

/// Returns an entry with an escape for each octet above 127 (RFC 1035, section 5.1), and, if it has
/// such octets, without comments.
pub fn escape(entry: &[u8]) -> Cow<'_, [u8]> {
    if entry.is_ascii() {
        return Cow::Borrowed(entry);
    }
    let (mut text, mut copied) = (Vec::new(), 0);
    for word in words(entry) {
        push_without_comments(&entry[copied..word.start], &mut text);
        let mut escaped = false;
        for &octet in &entry[word.start..word.end] {
            match octet.is_ascii() {
                true => text.push(octet),
                false => text.extend(format!("{}{octet:03}", if escaped { "" } else { "\\" }).bytes()),
            }
            escaped = !escaped && octet == b'\\';
        }
        copied = word.end;
    }
    push_without_comments(&entry[copied..], &mut text);
    Cow::Owned(text)
}

/// Appends what is between words, without comments.
fn push_without_comments(between: &[u8], text: &mut Vec<u8>) {
    let mut comment = false;
    text.extend(between.iter().filter(|octet| {
        comment = **octet != b'\n' && (comment || **octet == b';');
        !comment
    }));
}

/// Returns the file that an entry includes, if it is a `$INCLUDE`.
///
/// # Errors
/// What is wrong with its name.
pub fn included(entry: &[u8]) -> Result<Option<PathBuf>, String> {
    if !is_control(entry, b"$INCLUDE") {
        return Ok(None);
    }
    let words = words(entry);
    let name = fields::unescape(words.get(1).ok_or("no file is named")?.text)?;
    Ok(Some(PathBuf::from(OsString::from_vec(name))))
}

/// Returns whether an entry begins with this control word.
fn is_control(entry: &[u8], name: &[u8]) -> bool {
    let front = entry.get(..name.len()).is_some_and(|front| front.eq_ignore_ascii_case(name));
    front && entry.get(name.len()).is_none_or(|octet| is_between(*octet) || matches!(octet, b';' | b'"'))
}

/// Returns an entry as the reader understands it; relative names are within `origin`.
///
/// # Errors
/// What is wrong with data of a type that the reader does not know.
pub fn translate<'a>(entry: &'a [u8], origin: &'a Name<[u8]>) -> Result<Cow<'a, [u8]>, String> {
    let words = words(entry);
    let mut edits = Edits { entry, origin, text: Vec::new(), copied: 0 };
    if words.first().is_some_and(|word| word.text.starts_with(b"$")) {
        edits.control(&words);
        return Ok(edits.finish());
    }
    // The owner, unless the entry begins with space.
    let named = !entry.first().is_some_and(u8::is_ascii_whitespace);
    let mut rest = words.get(usize::from(named)..).unwrap_or_default();
    while let [word, after @ ..] = rest
        && (is_class(word.text) || seconds(word.text).is_some())
    {
        edits.edit(word, Part::Time);
        rest = after;
    }
    let [rtype, data @ ..] = rest else { return Ok(edits.finish()) };
    if data.first().is_some_and(|word| word.text == b"\\#" && !word.quoted) {
        // Octets already. Some names of types are ours alone.
        if let Some((number, _)) = fields::find(rtype.text) {
            edits.replace(rtype.start, rtype.end, &format!("TYPE{number}"));
        }
    } else if let Some((number, layout)) = fields::find(rtype.text) {
        let wire = fields::compose(layout, data, origin)?;
        let mut text = format!("TYPE{number} \\# {} ", wire.len());
        for octet in wire {
            let _ = write!(text, "{octet:02x}");
        }
        // Parentheses between the words go with them, and some may stand behind.
        let end = data.last().map_or(rtype.end, |word| word.end);
        edits.replace(rtype.start, end, &text);
        return Ok(edits.finish_without_parentheses());
    } else {
        for (index, part) in parts(rtype.text) {
            data.get(*index).into_iter().for_each(|word| edits.edit(word, *part));
        }
    }
    Ok(edits.finish())
}

/// A part of a record's data that may have a form which the reader does not know.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A name: `@` is the origin (RFC 1035, section 5.1).
    Name,
    /// A time in s: it may have units.
    Time,
    /// An algorithm of DNSSEC by name.
    Algorithm,
    /// A kind of digest by name.
    Digest,
}

/// Positions of such parts in the data of types whose other parts the reader knows.
const PARTS: [(Rtype, &[(usize, Part)]); 22] = {
    use Part::{Algorithm, Digest, Name, Time};
    [
        (Rtype::NS, &[(0, Name)]),
        (Rtype::MD, &[(0, Name)]),
        (Rtype::MF, &[(0, Name)]),
        (Rtype::CNAME, &[(0, Name)]),
        (Rtype::SOA, &[(0, Name), (1, Name), (2, Time), (3, Time), (4, Time), (5, Time), (6, Time)]),
        (Rtype::MB, &[(0, Name)]),
        (Rtype::MG, &[(0, Name)]),
        (Rtype::MR, &[(0, Name)]),
        (Rtype::PTR, &[(0, Name)]),
        (Rtype::MINFO, &[(0, Name), (1, Name)]),
        (Rtype::MX, &[(1, Name)]),
        (Rtype::RP, &[(0, Name), (1, Name)]),
        (Rtype::SRV, &[(3, Name)]),
        (Rtype::NAPTR, &[(5, Name)]),
        (Rtype::DNAME, &[(0, Name)]),
        (Rtype::DS, &[(1, Algorithm), (2, Digest)]),
        // The gateway; in its other forms it is never `@`.
        (Rtype::IPSECKEY, &[(3, Name)]),
        (Rtype::RRSIG, &[(1, Algorithm), (7, Name)]),
        (Rtype::NSEC, &[(0, Name)]),
        (Rtype::DNSKEY, &[(2, Algorithm)]),
        (Rtype::CDS, &[(1, Algorithm), (2, Digest)]),
        (Rtype::CDNSKEY, &[(2, Algorithm)]),
    ]
};

/// Returns the parts of a type's data to look at, by mnemonic or as `TYPE5`.
fn parts(rtype: &[u8]) -> &'static [(usize, Part)] {
    let rtype: Option<Rtype> = core::str::from_utf8(rtype).ok().and_then(|text| text.parse().ok());
    PARTS.iter().find(|(of, _)| Some(*of) == rtype).map_or(&[], |(_, parts)| *parts)
}

/// Returns a name in a form without any character of the syntax.
fn presented(name: &Name<[u8]>) -> String {
    let mut text = String::new();
    for label in name.iter_labels().filter(|label| !label.is_root()) {
        for &octet in label.as_slice() {
            match octet {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(char::from(octet)),
                _ => drop(write!(text, "\\{octet:03}")),
            }
        }
        text.push('.');
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

fn is_class(word: &[u8]) -> bool {
    let named = [&b"IN"[..], b"CH", b"HS", b"CS"].iter().any(|class| word.eq_ignore_ascii_case(class));
    let digits = word.get(..5).is_some_and(|front| front.eq_ignore_ascii_case(b"CLASS"));
    named || digits && word[5..].iter().all(u8::is_ascii_digit)
}

/// An entry, parts of which are replaced from left to right.
struct Edits<'a> {
    entry: &'a [u8],
    origin: &'a Name<[u8]>,
    text: Vec<u8>,
    /// The part of the entry that is in `text`.
    copied: usize,
}

impl<'a> Edits<'a> {
    fn replace(&mut self, start: usize, end: usize, by: &str) {
        self.text.extend_from_slice(&self.entry[self.copied..start]);
        self.text.extend_from_slice(by.as_bytes());
        self.copied = end;
    }

    /// Replaces a word if it has a form that the reader does not know.
    fn edit(&mut self, word: &Word<'_>, part: Part) {
        let by = match part {
            Part::Name => (word.text == b"@" && !word.quoted).then(|| presented(self.origin)),
            Part::Time if word.text.iter().all(u8::is_ascii_digit) => None,
            Part::Time => seconds(word.text).map(|seconds| seconds.to_string()),
            Part::Algorithm => fields::algorithm(word.text).map(|number| number.to_string()),
            Part::Digest => fields::digest(word.text).map(|number| number.to_string()),
        };
        if let Some(by) = by {
            self.replace(word.start, word.end, &by);
        }
    }

    /// Edits an entry that begins with a control word.
    fn control(&mut self, words: &[Word<'_>]) {
        let is = |name: &[u8]| words[0].text.eq_ignore_ascii_case(name);
        let (index, part) = match () {
            () if is(b"$TTL") => (1, Part::Time),
            () if is(b"$ORIGIN") => (1, Part::Name),
            () if is(b"$INCLUDE") => (2, Part::Name),
            () => return,
        };
        // The reader keeps the last quotation mark of a file's name.
        if let (2, Some(file)) = (index, words.get(1)) {
            self.replace(file.start, file.end, "file");
        }
        words.get(index).into_iter().for_each(|word| self.edit(word, part));
    }

    fn finish(mut self) -> Cow<'a, [u8]> {
        if self.copied == 0 {
            return Cow::Borrowed(self.entry);
        }
        self.text.extend_from_slice(&self.entry[self.copied..]);
        Cow::Owned(self.text)
    }

    /// Ends an entry whose data were replaced to their end: on one line, since parentheses in front
    /// of the data may have lost their partners.
    fn finish_without_parentheses(self) -> Cow<'a, [u8]> {
        let mut line = Vec::with_capacity(self.text.len() + 1);
        if self.text.first().is_some_and(u8::is_ascii_whitespace) {
            line.push(b' ');
        }
        for word in words(&self.text) {
            line.extend_from_slice(&self.text[word.start..word.end]);
            line.push(b' ');
        }
        line.push(b'\n');
        Cow::Owned(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(entry: &str) -> String {
        let origin = Name::vec_from_str("example.").unwrap();
        let text = translate(entry.as_bytes(), origin.for_slice()).unwrap();
        String::from_utf8(text.into_owned()).unwrap()
    }

    #[test]
    fn octets_above_127_get_escapes_and_their_entries_lose_comments() {
        for (entry, wanted) in [
            ("a TXT b ; c\n", "a TXT b ; c\n"),
            (
                "\u{e9} TXT ( \"\u{e9};\" ; \u{e9} )\n b ; c\n)\n",
                "\\195\\169 TXT ( \"\\195\\169;\" \n b \n)\n",
            ),
            ("a TXT \\\u{e9} \\\\\u{e9} ; x", "a TXT \\195\\169 \\\\\\195\\169 "),
            ("\ta\tTXT (b;\u{e9}\n)", "\ta\tTXT (b\n)"),
        ] {
            assert_eq!(String::from_utf8_lossy(&escape(entry.as_bytes())), wanted);
        }
    }

    #[test]
    fn only_what_the_reader_does_not_know_is_translated() {
        for same in [
            "a A 192.0.2.1\n",
            "a TXT @\n",
            "a MX 1 \"@\"\n",
            "$ORIGIN 1h\n",
            "1h 60 IN TXT 1h ; 1h\n",
            "a SOA b c (1 2 3\n4 5)\n",
            " \n",
        ] {
            assert_eq!(translated(same), same);
        }
        for (entry, wanted) in [
            ("$ttl 1h ; x\n", "$ttl 3600 ; x\n"),
            ("1h 1h IN A 192.0.2.1\n", "1h 3600 IN A 192.0.2.1\n"),
            ("\tIN 2m TXT 1h\n", "\tIN 120 TXT 1h\n"),
            ("a SOA 1h 1h (1 1h\n1m 1w 1d)\n", "a SOA 1h 1h (1 3600\n60 604800 86400)\n"),
            ("a DS 1 RSASHA256 2 00\n", "a DS 1 8 2 00\n"),
            ("a CDS 1 8 (SHA-384 00\n)\n", "a CDS 1 8 (4 00\n)\n"),
            ("@ SOA @ @ 1 1h 1 1 1\n", "@ SOA example. example. 1 3600 1 1 1\n"),
            ("@ MX @ @ ; @\n", "@ MX @ example. ; @\n"),
            ("$origin @\n", "$origin example.\n"),
            ("$INCLUDE \"a b\" @ ; c\n", "$INCLUDE file example. ; c\n"),
            ("a KX 1 b ; c\n", "a TYPE36 \\# 13 00010162076578616d706c6500 \n"),
            (" (1h KX\n1\n.)\n", " 3600 TYPE36 \\# 3 000100 \n"),
            ("a NSAP-PTR \\# 1 00\n", "a TYPE23 \\# 1 00\n"),
        ] {
            assert_eq!(translated(entry), wanted);
        }
    }
}
