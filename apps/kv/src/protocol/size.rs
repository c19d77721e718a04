//! Counts the keys that the command at the head of a connection's input retrieves: the size by
//! which a dispatcher classifies it.
//!
//! | retrieval | its keys |
//! |---|---|
//! | a line of get, gets, gat, gats | those of the line; one longer than [`MAX_LINE`] whose end has not arrived has too many to count |
//! | binary: quiet gets in a row | those that have arrived |
//! | anything else | none |
//!
//! Only looks at the bytes: the command may turn out to be invalid.

use super::connection::MAX_LINE;
use super::packet::{Command, HEADER, Header};

/// Returns whether the text command at the head of `input` retrieves at least `keys` keys.
pub(super) fn is_large_line(input: &[u8], keys: usize) -> bool {
    let end = input.iter().position(|&c| c == b'\n');
    let line = &input[..end.unwrap_or(input.len())];
    let mut words = line.split(|&c| c == b' ' || c == b'\r').filter(|word| !word.is_empty());
    let before = match words.next() {
        Some(b"get" | b"gets") => 0,
        // The expiration time.
        Some(b"gat" | b"gats") => 1,
        _ => return false,
    };
    if end.is_none() && input.len() > MAX_LINE {
        return true;
    }
    words.skip(before).take(keys).count() == keys
}

/// Returns whether `input` begins with at least `keys` quiet gets of the binary protocol.
pub(super) fn are_large_packets(mut input: &[u8], keys: usize) -> bool {
    for _ in 0..keys {
        let Some(header) = input.first_chunk::<HEADER>().map(Header::decode) else { return false };
        if !matches!(header.command(), Some((Command::Get { .. }, true))) {
            return false;
        }
        input = input.get(HEADER.saturating_add(header.body_len)..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_retrieval_are_counted() {
        for (line, keys) in [
            ("get a b c\r\nget d e f g\r\n", 3),
            ("  gets  a   b\r\n", 2),
            ("gat 10 a b c\r\n", 3),
            ("gats 10 a\n", 1),
            ("get a b", 2),
        ] {
            assert!(is_large_line(line.as_bytes(), keys), "{line:?}");
            assert!(!is_large_line(line.as_bytes(), keys + 1), "{line:?}");
        }
        for line in ["", "get", "getx a b", "set a 0 0 1\r\nget a b c\r\n", "mg a b\r\n"] {
            assert!(!is_large_line(line.as_bytes(), 1), "{line:?}");
        }
        let long = format!("get {}", "k".repeat(MAX_LINE));
        assert!(is_large_line(long.as_bytes(), 1_000) && !is_large_line((long + "\r\n").as_bytes(), 1_000));
    }

    #[test]
    fn quiet_gets_in_a_row_are_counted() {
        let packet = |opcode: u8| {
            let mut packet = [0; HEADER + 3];
            (packet[0], packet[1], packet[3], packet[11]) = (0x80, opcode, 3, 3);
            packet
        };
        let (getq, noop) = (packet(0x09), packet(0x0a));
        let packets = [getq, getq, getq, noop, getq].concat();
        assert!(are_large_packets(&packets, 3) && !are_large_packets(&packets, 4));
        // The last has arrived in part.
        assert!(are_large_packets(&packets[..2 * packet(0).len() + HEADER], 3));
        assert!(!are_large_packets(&packets[..2 * packet(0).len() + HEADER - 1], 3));
        let mut endless = getq;
        endless[8..12].fill(0xff);
        assert!(!are_large_packets(&endless, 2));
    }
}
