//! Text that others wrote, made harmless.
//!
//! Names of programs, classes and batch jobs come from programs. Owns what becomes of them on a
//! terminal, where control characters and reordered text could show something else.

/// Returns a name as a terminal may show it: letters, digits, ASCII, and `?` for all else.
#[must_use]
pub fn plain(name: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() { c } else { '?' };
    name.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_nothing_to_a_terminal() {
        assert_eq!(plain("web-1 (café)"), "web-1 (café)");
        assert_eq!(plain("\x1b[2J\u{202e}\n\u{200b}"), "?[2J???");
    }
}
