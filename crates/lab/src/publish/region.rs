//! Marked regions of a page: what is between `<!-- figures: NAME -->` and `<!-- end figures -->`.
//!
//! Owns the markers. Text outside of them is never changed. Pure.

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end figures -->";

/// Returns the names of the regions of a page, in order.
///
/// # Errors
/// If a marker has no partner; the message has its line.
pub fn names(page: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    replace(page, |name| {
        found.push(name.to_owned());
        Ok(String::new())
    })?;
    Ok(found)
}

/// Returns the page with the content of each region replaced by that of `content`.
///
/// # Errors
/// If a marker has no partner, or the error of `content`.
pub fn replace(
    page: &str,
    mut content: impl FnMut(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut text = String::with_capacity(page.len());
    let mut open: Option<usize> = None;
    for (index, line) in page.lines().enumerate() {
        let number = index + 1;
        match (name(line), line.trim() == END) {
            (Some(_), _) if open.is_some() => {
                return Err(format!("line {number}: a region begins inside another one"));
            }
            (Some(name), _) => {
                open = Some(number);
                text += &format!("{line}\n\n{}\n\n", content(name)?.trim());
            }
            (None, true) => {
                if open.take().is_none() {
                    return Err(format!("line {number}: {END} without a region"));
                }
                text += &format!("{line}\n");
            }
            (None, false) if open.is_none() => text += &format!("{line}\n"),
            (None, false) => {}
        }
    }
    match open {
        Some(number) => Err(format!("line {number}: the region has no {END}")),
        None => Ok(text),
    }
}

/// Returns the name of the region that begins in this line.
fn name(line: &str) -> Option<&str> {
    line.trim().strip_prefix(BEGIN)?.strip_suffix("-->").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n<!-- figures: tcp -->\nold\n<!-- end figures -->\n\nText.\n";

    #[test]
    fn what_is_between_the_markers_is_replaced() {
        let new = replace(PAGE, |name| Ok(format!("new {name}\n"))).unwrap();
        assert_eq!(new, "# Title\n\n<!-- figures: tcp -->\n\nnew tcp\n\n<!-- end figures -->\n\nText.\n");
        assert_eq!(replace(&new, |name| Ok(format!("new {name}"))).unwrap(), new);
        assert_eq!(names(PAGE).unwrap(), ["tcp"]);
        assert_eq!(names("# Title\n").unwrap(), [""; 0]);
    }

    #[test]
    fn a_marker_without_a_partner_is_reported_by_its_line() {
        assert_eq!(
            names("a\n<!-- end figures -->\n").unwrap_err(),
            "line 2: <!-- end figures --> without a region"
        );
        let open = "<!-- figures: a -->\n";
        assert!(names(open).unwrap_err().contains("line 1: the region has no"));
        let nested = format!("{open}{open}{END}\n");
        assert!(names(&nested).unwrap_err().contains("line 2: a region begins inside"));
    }
}
