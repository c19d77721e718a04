//! Modules of the guest's kernel, in an order in which they load.
//!
//! Reads `modules.dep` and `modules.builtin` (modules.dep(5)); loads nothing.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the files of these modules and of those that they need, each after those that it needs;
/// modules that are part of the kernel have none.
///
/// # Errors
/// If the kernel lacks one.
pub fn in_order(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let (needs, built_in) = (read("modules.dep")?, read("modules.builtin")?);
    let mut order = Vec::new();
    for &name in names {
        if built_in.lines().any(|path| name_of(path) == name) {
            continue;
        }
        let line =
            needs.lines().filter_map(|line| line.split_once(':')).find(|(path, _)| name_of(path) == name);
        let (path, needed) = line.with_context(|| format!("{} has no module {name}", folder.display()))?;
        // Those that a module needs are listed from the last to the first to load.
        for path in needed.split_whitespace().rev().chain([path]) {
            let path = folder.join(path);
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// Returns a module's name by its path.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_loads_after_those_that_it_needs() {
        let folder = tempfile::tempdir().expect("a folder");
        let dep = "kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio-ring.ko\n\
                   kernel/net/9p/9pnet.ko.xz: kernel/drivers/virtio/virtio-ring.ko\n";
        fs::write(folder.path().join("modules.dep"), dep).expect("a list");
        fs::write(folder.path().join("modules.builtin"), "kernel/fs/overlayfs/overlay.ko\n").expect("a list");
        let order = in_order(folder.path(), &["overlay", "9pnet", "9pnet_virtio"]).expect("all are there");
        let names: Vec<_> = order.iter().map(|path| name_of(path.to_str().expect("text"))).collect();
        assert_eq!(names, ["virtio_ring", "9pnet", "9pnet_virtio"]);
        let error = in_order(folder.path(), &["igb"]).expect_err("there is none").to_string();
        assert!(error.contains("igb"), "{error}");
    }
}
