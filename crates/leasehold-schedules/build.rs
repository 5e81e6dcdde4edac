//! Compiles the library's sources over shuttle's primitives (see `sync.rs` there).
fn main() {
    println!("cargo::rustc-cfg=shuttle");
    println!("cargo::rerun-if-changed=build.rs");
}
