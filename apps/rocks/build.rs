//! Links the system's librocksdb, if the feature `rocksdb` asks for it.

use std::path::Path;

/// Folders of the library in Debian, Fedora, Arch and a local installation.
const FOLDERS: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];

fn main() {
    println!("cargo::rerun-if-env-changed=ROCKSDB_LIB_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_none() {
        return;
    }
    let chosen = std::env::var("ROCKSDB_LIB_DIR").ok();
    let folders: Vec<&str> = chosen.as_deref().map_or_else(|| FOLDERS.to_vec(), |folder| vec![folder]);
    let Some(folder) = folders.iter().find(|folder| Path::new(folder).join("librocksdb.so").exists()) else {
        println!(
            "cargo::error=there is no librocksdb.so in {}: sudo apt install librocksdb-dev, or name its folder in \
             ROCKSDB_LIB_DIR",
            folders.join(", ")
        );
        return;
    };
    println!("cargo::rerun-if-changed={folder}/librocksdb.so");
    println!("cargo::rustc-link-search=native={folder}");
    println!("cargo::rustc-link-lib=dylib=rocksdb");
}
