//! The beginnings of the entries of a master file.
//!
//! Owns the line numbers in messages: the reader of `domain` reports no positions of what it has
//! read. An entry ends with its line, or with the line in which its last parenthesis closes (RFC
//! 1035, section 5.1).

use super::words::seconds;

/// An entry that is not blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The line in which it begins, from 1.
    pub line: usize,
    /// Its text, with comments.
    pub text: &'a [u8],
    /// True if all its parentheses and quotation marks are closed. False only for the last entry of
    /// a file.
    pub complete: bool,
}

impl Entry<'_> {
    /// Returns the time that a `$TTL` sets (RFC 2308, section 4).
    pub fn ttl(&self) -> Option<u32> {
        if !self.word(0)?.eq_ignore_ascii_case(b"$TTL") {
            return None;
        }
        seconds(self.word(1)?)
    }

    fn word(&self, index: usize) -> Option<&[u8]> {
        self.text
            .split(|octet| octet.is_ascii_whitespace() || *octet == b';')
            .filter(|word| !word.is_empty())
            .nth(index)
    }
}

/// Returns the entries of a file in order.
pub fn entries(mut text: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut line = 1;
    core::iter::from_fn(move || {
        while !text.is_empty() {
            let begins = line;
            let Extent { len, lines, blank, complete } = extent(text);
            let (entry, rest) = text.split_at(len);
            (text, line) = (rest, line + lines);
            if !blank {
                return Some(Entry { line: begins, text: entry, complete });
            }
        }
        None
    })
}

struct Extent {
    len: usize,
    lines: usize,
    blank: bool,
    complete: bool,
}

/// Returns the extent of the first entry of `text`.
fn extent(text: &[u8]) -> Extent {
    let (mut quoted, mut comment, mut escaped, mut depth) = (false, false, false, 0u32);
    let mut extent = Extent { len: text.len(), lines: 0, blank: true, complete: false };
    for (at, &octet) in text.iter().enumerate() {
        extent.lines += usize::from(octet == b'\n');
        if octet == b'\n' && depth == 0 && !quoted {
            extent.len = at + 1;
            break;
        }
        if comment {
            comment = octet != b'\n';
            continue;
        }
        extent.blank &= octet.is_ascii_whitespace() || octet == b';';
        match octet {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b';' => comment = true,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    extent.complete = depth == 0 && !quoted;
    extent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        entries(text.as_bytes()).map(|entry| entry.line).collect()
    }

    #[test]
    fn entries_begin_where_they_begin() {
        assert_eq!(lines("a\nb\n\n ; nothing\n c ; more\nd"), [1, 2, 5, 6]);
        assert_eq!(lines("a (\n b ; )\n\n c )\nd"), [1, 5]);
        assert_eq!(lines("a \"(;\n\\\"\" x\nb \\( \\; (\n)\nc"), [1, 3, 5]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn an_entry_without_its_end_is_incomplete() {
        let complete = |text: &str| entries(text.as_bytes()).map(|entry| entry.complete).collect::<Vec<_>>();
        assert_eq!(complete("a (b)\nb"), [true, true]);
        assert_eq!(complete("a\nb (\nc\n"), [true, false]);
        assert_eq!(complete("b \"\nc\n"), [false]);
        assert_eq!(complete("a ; ( \"\n"), [true]);
    }

    #[test]
    fn settings_of_times_are_read() {
        let text = b"$TTL 300 ; five minutes\n$origin a.\n$INCLUDE x\n$TTL 1h\n";
        let seen: Vec<_> = entries(text).map(|entry| entry.ttl()).collect();
        assert_eq!(seen, [Some(300), None, None, Some(3600)]);
    }
}
