//! A package of a published crate holds the texts of its licenses.

use std::fs;
use std::path::Path;

#[test]
fn each_published_crate_has_the_texts_of_its_licenses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository");
    let mut published = 0;
    for folder in fs::read_dir(root.join("crates")).expect("the crates").map(|entry| entry.unwrap().path()) {
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        if manifest.contains("publish.workspace = true") {
            continue;
        }
        published += 1;
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            // Not a link: it may be checked out as a file that has the link's path for its text.
            let is_file = fs::symlink_metadata(folder.join(name)).is_ok_and(|metadata| metadata.is_file());
            let text = fs::read(folder.join(name)).unwrap_or_default();
            let same = text == fs::read(root.join(name)).expect("the license of the repository");
            assert!(is_file && same, "copy {name} of the repository into {}", folder.display());
        }
    }
    assert!(published > 10, "{published}");
}
