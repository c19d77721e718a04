//! Every input in the fuzzers' corpora, replayed through their targets on the stable compiler.
//!
//! `fuzz/corpus` holds the seeds, which code makes (`fuzz/src/seeds/mod.rs`), and
//! `fuzz/regressions` inputs that once violated a property.

use std::path::{Path, PathBuf};
use tailwater_fuzz::{TARGETS, seeds};

fn inputs(folder: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn no_known_input_breaks_a_target() {
    for (name, target) in TARGETS {
        let paths: Vec<_> =
            ["corpus", "regressions"].iter().flat_map(|folder| inputs(folder, name)).collect();
        assert!(!paths.is_empty(), "{name} has no corpus");
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            // The panic's own message says what failed; this says for which input.
            let result = std::panic::catch_unwind(|| target(&bytes));
            assert!(result.is_ok(), "{name} broke on {}", path.display());
        }
    }
}

#[test]
fn the_committed_seeds_are_those_the_code_makes() {
    for (name, _) in TARGETS {
        for (seed, bytes) in seeds::of(name) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../fuzz/corpus")
                .join(name)
                .join(format!("seed-{seed}"));
            assert!(
                std::fs::read(&path).is_ok_and(|committed| committed == bytes),
                "{} is out of date; run `cargo run --example write_seeds --no-default-features` in fuzz/",
                path.display()
            );
        }
    }
}

/// Truncations of the seeds: cheap, and a common cause of decoder bugs.
#[test]
fn no_truncated_seed_breaks_a_target() {
    for (name, target) in TARGETS {
        for (_, bytes) in seeds::of(name) {
            let step = bytes.len().div_ceil(40).max(1);
            (0..bytes.len()).step_by(step).for_each(|len| target(&bytes[..len]));
        }
    }
}
