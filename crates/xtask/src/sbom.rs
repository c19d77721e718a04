//! The list of the crates that the packed programs contain, in the format of CycloneDX 1.5.
//!
//! Owns the list; cargo and Cargo.lock have the facts. The format's serial number and time are left
//! out, which would differ from one run to the next.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::{VERSION, root, run};

/// Between the fields that cargo prints.
const SEPARATOR: char = '\t';

/// Returns the list for programs of these packages.
pub(crate) fn of(packages: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").context("start this by cargo, as `cargo xtask`")?;
    let mut tree = Command::new(cargo);
    tree.current_dir(root()).args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", &format!("{{p}}{SEPARATOR}{{l}}")]);
    for package in packages {
        tree.args(["-p", package]);
    }
    let lock = root().join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let document = document(&String::from_utf8(run(&mut tree)?)?, &checksums(&lock)?);
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Returns the checksums of crates by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock is not TOML")?;
    let packages = lock.get("package").and_then(|packages| packages.as_array()).cloned();
    let entry = |package: toml::Value| {
        let text = |key| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        Some(((text("name")?, text("version")?), text("checksum")?))
    };
    Ok(packages.unwrap_or_default().into_iter().filter_map(entry).collect())
}

/// Returns the document for the lines of `cargo tree`.
fn document(tree: &str, checksums: &BTreeMap<(String, String), String>) -> Value {
    // `(*)` stands behind what was printed before.
    let lines: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let components = lines.into_iter().filter_map(|line| {
        let (package, licence) = line.split_once(SEPARATOR)?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.trim_start_matches('v'));
        let mut component = json!({
            "type": "library", "name": name, "version": version,
            "bom-ref": format!("{name}@{version}"),
            "licenses": [{"expression": licence.replace('/', " OR ")}],
        });
        // Crates of this project are in no registry.
        if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["purl"] = format!("pkg:cargo/{name}@{version}").into();
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        Some(component)
    });
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "name": "tailwater", "version": VERSION}},
        "components": components.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_listed_once_with_its_licence_and_the_checksum_of_the_lock_file() {
        let lock = "[[package]]\nname = \"libc\"\nversion = \"0.2.1\"\nchecksum = \"abc\"\n\
                    [[package]]\nname = \"tailwater\"\nversion = \"0.1.0\"\n";
        let tree = "tailwater v0.1.0 (/x/y)\tMIT OR Apache-2.0\nlibc v0.2.1\tMIT/Apache-2.0\n\
                    libc v0.2.1\tMIT/Apache-2.0 (*)\n\n";
        let document = document(tree, &checksums(lock).unwrap());
        let components = document["components"].as_array().unwrap();
        assert_eq!(components.len(), 2, "{document}");
        assert_eq!(components[0]["purl"], "pkg:cargo/libc@0.2.1");
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[1]["name"], "tailwater");
        assert!(components[1].get("purl").is_none(), "it is in no registry");
    }
}
