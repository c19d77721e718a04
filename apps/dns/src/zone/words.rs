//! The words of an entry of a master file, and times in it.
//!
//! Owns where a word begins and ends: escapes, quotation marks, parentheses, comments (RFC 1035,
//! section 5.1). What words mean is for [`syntax`](super::syntax) and [`fields`](super::fields).

/// A word of an entry, or a text in quotation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// Its octets with escapes, without quotation marks.
    pub text: &'a [u8],
    /// True if it stands in quotation marks.
    pub quoted: bool,
    /// Where it begins in the entry, with its quotation mark.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

impl Word<'_> {
    /// Returns whether nothing is between `before` and this word.
    pub fn adjoins(&self, before: &Word<'_>) -> bool {
        self.start == before.end
    }
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

/// Returns whether an octet without an escape or quotation marks separates words.
pub fn is_between(octet: u8) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
