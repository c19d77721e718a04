//! Syntax of master files beyond that which the reader of `domain` understands.
//!
//! Owns the translation of an entry into that reader's syntax: times with units (`1h30m`),
//! algorithms of DNSSEC by name, and data of types that it reads as octets only
//! ([`fields`](super::fields)), which become `\# LENGTH OCTETS` (RFC 3597, section 5). Entries
//! without any of these stay as they are.

use std::borrow::Cow;
use std::fmt::Write as _;

use domain::base::name::Name;

use super::fields;

/// A word of an entry, or a text in quotation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// Its octets with escapes, without quotation marks.
    pub text: &'a [u8],
    /// True if it stands in quotation marks.
    pub quoted: bool,
    /// Where it begins in the entry, with its quotation mark.
    start: usize,
    /// Where it ends.
    end: usize,
}

/// Returns the words of an entry, without parentheses and comments.
pub fn words(entry: &[u8]) -> Vec<Word<'_>> {
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(&octet) = entry.get(at) {
        match octet {
            b';' => at += entry[at..].iter().position(|octet| *octet == b'\n').unwrap_or(entry.len() - at),
            b'"' => {
                let end = end_of(&entry[at + 1..], |octet| octet == b'"') + at + 1;
                let past = (end + 1).min(entry.len());
                words.push(Word { text: &entry[at + 1..end], quoted: true, start: at, end: past });
                at = past;
            }
            _ if is_between(octet) => at += 1,
            _ => {
                let stop = |octet| is_between(octet) || matches!(octet, b';' | b'"');
                let end = end_of(&entry[at..], stop) + at;
                words.push(Word { text: &entry[at..end], quoted: false, start: at, end });
                at = end;
            }
        }
    }
    words
}

fn is_between(octet: u8) -> bool {
    octet.is_ascii_whitespace() || matches!(octet, b'(' | b')')
}

/// Returns the position of the first octet without an escape for which `stop` holds, or the end.
fn end_of(text: &[u8], stop: impl Fn(u8) -> bool) -> usize {
    let mut escaped = false;
    let ends = |octet: &u8| {
        let end = !escaped && stop(*octet);
        escaped = !escaped && *octet == b'\\';
        end
    };
    text.iter().position(ends).unwrap_or(text.len())
}

/// Parses a time in s: a number, or numbers with units, as `1h30m`.
pub fn seconds(text: &[u8]) -> Option<u32> {
    let (mut total, mut number) = (0u32, None::<u32>);
    for octet in text {
        let unit = match octet.to_ascii_lowercase() {
            digit @ b'0'..=b'9' => {
                let digit = u32::from(digit - b'0');
                number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
                continue;
            }
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            b'd' => 86400,
            b'w' => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    match number {
        Some(number) => total.checked_add(number),
        None => (!text.is_empty()).then_some(total),
    }
}

/// Returns an entry as the reader understands it; relative names are within `origin`.
///
/// # Errors
/// What is wrong with data of a type that the reader does not know.
pub fn translate<'a>(entry: &'a [u8], origin: &Name<[u8]>) -> Result<Cow<'a, [u8]>, String> {
    let words = words(entry);
    let mut edits = Edits { entry, text: Vec::new(), copied: 0 };
    if words.first().is_some_and(|word| word.text.starts_with(b"$")) {
        if words[0].text.eq_ignore_ascii_case(b"$TTL") {
            words.get(1).into_iter().for_each(|word| edits.time(word));
        }
        return Ok(edits.finish());
    }
    // The owner, unless the entry begins with space.
    let named = !entry.first().is_some_and(u8::is_ascii_whitespace);
    let mut rest = words.get(usize::from(named)..).unwrap_or_default();
    while let [word, after @ ..] = rest
        && (is_class(word.text) || seconds(word.text).is_some())
    {
        edits.time(word);
        rest = after;
    }
    let [rtype, data @ ..] = rest else { return Ok(edits.finish()) };
    if data.first().is_some_and(|word| word.text == b"\\#" && !word.quoted) {
        // Octets already. Some names of types are ours alone.
        if let Some((number, _)) = fields::find(rtype.text) {
            edits.replace(rtype.start, rtype.end, &format!("TYPE{number}"));
        }
    } else if rtype.text.eq_ignore_ascii_case(b"SOA") {
        data.iter().skip(2).for_each(|word| edits.time(word));
    } else if let Some(word) = algorithm_word(rtype.text).and_then(|index| data.get(index)) {
        if let Some(number) = fields::algorithm(word.text) {
            edits.replace(word.start, word.end, &number.to_string());
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
    }
    Ok(edits.finish())
}

/// Returns the position of the algorithm in the data of types whose other fields the reader knows.
fn algorithm_word(rtype: &[u8]) -> Option<usize> {
    let is = |name: &[u8]| rtype.eq_ignore_ascii_case(name);
    match () {
        () if is(b"DNSKEY") || is(b"CDNSKEY") => Some(2),
        () if is(b"DS") || is(b"CDS") || is(b"RRSIG") => Some(1),
        () => None,
    }
}

fn is_class(word: &[u8]) -> bool {
    let named = [&b"IN"[..], b"CH", b"HS", b"CS"].iter().any(|class| word.eq_ignore_ascii_case(class));
    let digits = word.get(..5).is_some_and(|front| front.eq_ignore_ascii_case(b"CLASS"));
    named || digits && word[5..].iter().all(u8::is_ascii_digit)
}

/// An entry, parts of which are replaced from left to right.
struct Edits<'a> {
    entry: &'a [u8],
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

    /// Replaces a time with units by its seconds; other words stay.
    fn time(&mut self, word: &Word<'_>) {
        if let Some(seconds) = seconds(word.text)
            && !word.text.iter().all(u8::is_ascii_digit)
        {
            self.replace(word.start, word.end, &seconds.to_string());
        }
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
    fn times_have_units() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("90", Some(90)),
            ("1h", Some(3600)),
            ("1W2D3h4M5s", Some(604_800 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5)),
            ("1m5", Some(65)),
            ("", None),
            ("h", None),
            ("1y", None),
            ("4294967296", None),
            ("9999999w", None),
        ] {
            assert_eq!(seconds(text.as_bytes()), wanted, "{text}");
        }
    }

    #[test]
    fn words_are_those_of_the_reader() {
        let entry = b"a\\ b (\"c;\\\" d\" ; e\n f)g\"h\" ;";
        let texts: Vec<_> = words(entry).iter().map(|word| (word.text.to_vec(), word.quoted)).collect();
        let wanted: [(&[u8], bool); 5] =
            [(b"a\\ b", false), (b"c;\\\" d", true), (b"f", false), (b"g", false), (b"h", true)];
        assert_eq!(texts, wanted.map(|(text, quoted)| (text.to_vec(), quoted)));
        assert!(words(b" ; \n").is_empty());
        assert_eq!(words(b"\"open").len(), 1);
    }

    #[test]
    fn only_what_the_reader_does_not_know_is_translated() {
        for same in
            ["a A 192.0.2.1\n", "$ORIGIN 1h\n", "1h 60 IN TXT 1h ; 1h\n", "a SOA b c (1 2 3\n4 5)\n", " \n"]
        {
            assert_eq!(translated(same), same);
        }
        for (entry, wanted) in [
            ("$ttl 1h ; x\n", "$ttl 3600 ; x\n"),
            ("1h 1h IN A 192.0.2.1\n", "1h 3600 IN A 192.0.2.1\n"),
            ("\tIN 2m TXT 1h\n", "\tIN 120 TXT 1h\n"),
            ("a SOA 1h 1h (1 1h\n1m 1w 1d)\n", "a SOA 1h 1h (1 3600\n60 604800 86400)\n"),
            ("a DS 1 RSASHA256 2 00\n", "a DS 1 8 2 00\n"),
            ("a KX 1 b ; c\n", "a TYPE36 \\# 13 00010162076578616d706c6500 \n"),
            (" (1h KX\n1\n.)\n", " 3600 TYPE36 \\# 3 000100 \n"),
            ("a NSAP-PTR \\# 1 00\n", "a TYPE23 \\# 1 00\n"),
        ] {
            assert_eq!(translated(entry), wanted);
        }
    }
}
