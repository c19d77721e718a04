//! The programs in the README are the compiled ones.

/// Returns the lines between the fences that begin with `opening`.
fn fenced<'a>(text: &'a str, opening: &str) -> &'a str {
    let (_, rest) = text.split_once(opening).expect("the README has such a block");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_example_of_the_readme_is_the_one_that_compiles() {
    let shown = fenced(include_str!("../../../README.md"), "```rust file=src/main.rs\n");
    let (_, compiled) =
        include_str!("../../examples/echo.rs").split_once("\n\n").expect("a header and a program");
    assert_eq!(shown, compiled);
}
