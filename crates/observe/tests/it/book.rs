//! The page of the book about the statistics has every number of the list.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use tailwater_stats::schema::{PARTS, Shape};

const BEGIN: &str = "<!-- statistics: begin -->\n";
const END: &str = "<!-- statistics: end -->\n";

/// Returns the tables, one for each place.
fn tables() -> String {
    let mut text = String::new();
    for part in PARTS {
        let place = part.place();
        let title = if place.is_empty() { "the document".to_owned() } else { format!("`{place}`") };
        let labels: Vec<String> = part.labels().iter().map(|label| format!("`{label}`")).collect();
        let _ = write!(text, "\n## In {title}\n\n");
        if !labels.is_empty() {
            let _ = write!(text, "Labels: {}.\n\n", labels.join(", "));
        }
        text += "| key | is | kind | metric |\n|---|---|---|---|\n";
        for field in part.shape.fields() {
            let mut metric = part.metric_of(field);
            if let Shape::Values { label, .. } = part.shape {
                metric += &format!("{{{label}=\"{}\"}}", field.key);
            }
            let kind = field.kind.name();
            let _ = writeln!(text, "| `{}` | {} | {kind} | `{metric}` |", field.key, field.help);
        }
    }
    text + "\n"
}

#[test]
fn the_page_of_the_book_has_every_statistic() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/protocols/statistics.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the tables is marked");
    let (_, after) = rest.split_once(END).expect("the end of the tables is marked");
    let made = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("TAILWATER_UPDATE").is_some() {
        fs::write(&path, made).unwrap();
        return;
    }
    assert!(
        page == made,
        "{} is not what the list of statistics says: TAILWATER_UPDATE=1 cargo test -p tailwater-observe --test it book::",
        path.display()
    );
}
