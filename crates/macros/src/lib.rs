//! Procedural macros of the `tailwater` crate; use them through it.

use proc_macro::TokenStream;
use quote::quote;
use syn::{ItemFn, parse_macro_input, spanned::Spanned};

/// Turns `fn main` into a Tailwater program: installs the allocator guard and runs the body as the first user thread of a
/// runtime configured by `TAILWATER_*` variables (see `tailwater::Builder`).
///
/// A runtime that cannot start ends the program with exit code 1 and the reason on standard error.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        let message = "#[tailwater::main] takes no arguments: configure with tailwater::Builder or TAILWATER_* variables";
        return error(proc_macro2::Span::call_site(), message);
    }
    let function = parse_macro_input!(item as ItemFn);
    if function.sig.ident != "main" || !function.sig.inputs.is_empty() {
        return error(function.sig.span(), "#[tailwater::main] belongs on `fn main()` without arguments");
    }
    if let Some(token) = function.sig.asyncness {
        return error(
            token.span(),
            "user threads are not async: remove `async` and block where you would await",
        );
    }
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let output = &sig.output;
    quote! {
        #[global_allocator]
        static __TAILWATER_ALLOC: ::tailwater::Alloc = ::tailwater::Alloc;

        #(#attrs)*
        #vis fn main() -> ::std::process::ExitCode {
            let body = move || #output #block;
            match ::tailwater::Builder::new().run(move || ::std::process::Termination::report(body())) {
                ::core::result::Result::Ok(code) => code,
                ::core::result::Result::Err(error) => {
                    ::std::eprintln!("tailwater: {error}");
                    ::std::process::ExitCode::FAILURE
                }
            }
        }
    }
    .into()
}

fn error(span: proc_macro2::Span, message: &str) -> TokenStream {
    syn::Error::new(span, message).to_compile_error().into()
}
