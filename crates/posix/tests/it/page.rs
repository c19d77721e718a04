//! The page's table of calls is the library's.

use super::exports::exported;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const TABLE: &str = include_str!("../../src/calls/table.txt");
const BEGIN: &str = "<!-- calls: cargo test -p tailwater-posix with UPDATE_PAGES=1 writes this table -->\n";
const END: &str = "<!-- end of calls -->\n";

/// Returns names, verdict and note of each group.
fn groups() -> impl Iterator<Item = [&'static str; 3]> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut fields = line.split('|').map(str::trim);
        let group = [(); 3].map(|()| fields.next().unwrap_or_else(|| panic!("three fields: {line}")));
        assert!(["works", "differs", "refused"].contains(&group[1]), "{line}");
        group
    })
}

#[test]
fn the_table_has_every_exported_name_and_no_other() {
    let Some(exported) = exported() else { return };
    let listed: BTreeSet<String> =
        groups().flat_map(|[names, ..]| names.split(' ')).map(str::to_owned).collect();
    assert_eq!(listed, exported);
}

#[test]
fn the_page_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guide/programs.md");
    let mut table = "| calls | | how |\n|---|---|---|\n".to_owned();
    for [names, verdict, note] in groups() {
        let names: Vec<_> =
            names.split(' ').filter(|name| !name.starts_with("__")).map(|name| format!("`{name}`")).collect();
        writeln!(table, "| {} | {verdict} | {note} |", names.join(", ")).expect("a string takes all");
    }
    let page = fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the place of the table");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let wanted = format!("{before}{BEGIN}\n{table}\n{END}{after}");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        fs::write(&path, wanted).expect("the page can be written");
    } else {
        assert!(page == wanted, "{} differs: run this test with UPDATE_PAGES=1", path.display());
    }
}
