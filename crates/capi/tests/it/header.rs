//! The committed header is what cbindgen makes of the crate.

use std::path::Path;

/// Modules of the crate that have functions of C, in the order of the header.
const SOURCES: &[&str] = &[
    "border",
    "run",
    "thread",
    "key",
    "control",
    "lock",
    "meet",
    "clock",
    "net/table",
    "net/socket",
    "net/transfer",
    "net/options",
    "poller",
    "event_loop",
    "dispatch",
    "cores",
    "channel",
    "rcu",
    "memory",
];

#[test]
fn the_comment_of_each_function_says_whether_it_switches_threads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tailwater.h");
    let header = std::fs::read_to_string(path).unwrap();
    let (_, functions) = header.split_once("extern \"C\" {").unwrap();
    let (mut comment, mut silent, mut count) = (String::new(), Vec::new(), 0);
    for line in functions.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment += text;
        } else if line.is_empty() {
            comment.clear();
        } else if line.contains("tw_") && line.contains('(') && !line.starts_with([' ', '#']) {
            count += 1;
            let says = ["witch", "poll point", "As `tw_", "as `tw_", "waits in the kernel"];
            if !says.iter().any(|part| comment.contains(part)) && !line.contains("tw_sized") {
                silent.push(line);
            }
        }
    }
    assert!(count > 90 && silent.is_empty(), "{count} functions, of which these do not: {silent:#?}");
}

#[test]
fn the_committed_header_is_that_of_the_crate() {
    let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_.join("cbindgen.toml")).unwrap();
    // By file: with the crate, cbindgen would run cargo, which looks for packages of all platforms.
    let sources = SOURCES.iter().map(|name| crate_.join("src").join(name).with_extension("rs"));
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        assert!(source.is_file(), "{} is gone: mend the list in this file", source.display());
        builder.with_src(source)
    });
    let bindings = builder.generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = crate_.join("include/tailwater.h");
    if std::env::var_os("TAILWATER_UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(made.lines()).position(|(old, new)| old != new);
    assert!(
        committed == made,
        "include/tailwater.h differs from the crate, first in line {}: run `TAILWATER_UPDATE=1 cargo test -p \
         tailwater-capi --test it header`, and see whether the ABI has changed",
        differs.unwrap_or(committed.lines().count().min(made.lines().count())) + 1
    );
}
