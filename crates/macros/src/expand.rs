//! The expansions of the attributes: functions of the tokens they are applied to.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Error, Ident, ItemFn, Path, Result, ReturnType, Token};

/// Expands `#[tailwater::main]`.
pub fn main(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let Main { allocator } = Main::parse.parse2(arguments)?;
    let function = parse("#[tailwater::main]", item)?;
    if function.sig.ident != "main" {
        return Err(Error::new(function.sig.span(), "#[tailwater::main] belongs on `fn main()`"));
    }
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let output = &sig.output;
    let allocator = match allocator {
        // The runtime refuses to start if it is not the global one. That it is a guard at all is
        // said here.
        Some(path) => quote! {
            const _: fn() = || {
                fn is_a_guard<A>(_: &'static ::tailwater::Alloc<A>) {}
                is_a_guard(&#path);
            };
        },
        None => quote! {
            ::tailwater::allocator!();
        },
    };
    Ok(quote! {
        #allocator

        #(#attrs)*
        #vis fn main() -> ::std::process::ExitCode {
            let body = move || #output #block;
            match ::tailwater::RuntimeBuilder::new().run(move || ::std::process::Termination::report(body())) {
                ::core::result::Result::Ok(code) => code,
                ::core::result::Result::Err(error) => {
                    ::std::eprintln!("tailwater: {error}");
                    ::std::process::ExitCode::FAILURE
                }
            }
        }
    })
}

/// Arguments of `#[tailwater::main]`.
struct Main {
    /// The program's own `static` with `#[global_allocator]`.
    allocator: Option<Path>,
}

impl Parse for Main {
    fn parse(input: ParseStream) -> Result<Self> {
        if input.is_empty() {
            return Ok(Self { allocator: None });
        }
        let name: Ident = input.parse()?;
        if name != "allocator" {
            let message = "the only argument is `allocator = STATIC`: configure the runtime with tailwater::RuntimeBuilder or \
                           TAILWATER_* variables";
            return Err(Error::new(name.span(), message));
        }
        input.parse::<Token![=]>()?;
        let allocator = Some(input.parse()?);
        input.parse::<Option<Token![,]>>()?;
        Ok(Self { allocator })
    }
}

/// Expands `#[tailwater::test]`.
pub fn test(arguments: &TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        let message = "#[tailwater::test] takes no arguments: configure with TAILWATER_* variables";
        return Err(Error::new(Span::call_site(), message));
    }
    let ItemFn { attrs, vis, sig, block, .. } = parse("#[tailwater::test]", item)?;
    let (name, output) = (&sig.ident, &sig.output);
    let run = |body| quote! { ::tailwater::testing::run(::core::stringify!(#name), #body) };
    // A test with #[should_panic] must return nothing. Another result may not be `Send`: the user
    // thread turns it into an exit code.
    let (result, call) = match output {
        ReturnType::Default => (quote!(), run(quote! { move || #block })),
        ReturnType::Type(..) => {
            let report = quote! { move || {
                let body = move || #output #block;
                ::std::process::Termination::report(body())
            } };
            (quote! { -> ::std::process::ExitCode }, run(report))
        }
    };
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attrs)*
        #vis fn #name() #result {
            #call
        }
    })
}

/// Returns the function that `attribute` is applied to, which takes no arguments and is not async.
fn parse(attribute: &str, item: TokenStream) -> Result<ItemFn> {
    let function: ItemFn = syn::parse2(item)?;
    if !function.sig.inputs.is_empty() {
        let message = format!("{attribute} belongs on a function without arguments");
        return Err(Error::new(function.sig.span(), message));
    }
    if let Some(token) = function.sig.asyncness {
        let message = "user threads are not async: remove `async` and block where you would await";
        return Err(Error::new(token.span(), message));
    }
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(expansion: Result<TokenStream>) -> String {
        expansion.unwrap_err().to_string()
    }

    #[test]
    fn functions_that_cannot_be_user_threads_are_refused() {
        let none = TokenStream::new();
        let main = |item| main(TokenStream::new(), item);
        let test = |item| test(&none, item);
        for expand in [&main as &dyn Fn(_) -> _, &test] {
            assert!(refusal(expand(quote! { async fn main() {} })).contains("not async"));
            assert!(refusal(expand(quote! { fn main(x: u8) {} })).contains("without arguments"));
            assert!(expand(quote! { struct NotAFunction; }).is_err());
        }
        assert!(refusal(main(quote! { fn run() {} })).contains("fn main()"));
    }

    #[test]
    fn arguments_other_than_an_allocator_are_refused_with_the_alternative() {
        let function = || quote! { fn main() {} };
        for arguments in
            [quote!(threads = 4), quote!(allocator), quote!(allocator = ), quote!(allocator = A, b = C)]
        {
            assert!(main(arguments, function()).is_err());
        }
        assert!(refusal(main(quote!(threads = 4), function())).contains("RuntimeBuilder"));
        assert!(refusal(test(&quote!(allocator = ALLOC), function())).contains("takes no arguments"));
    }

    #[test]
    fn a_program_declares_one_allocator() {
        let declared = |arguments| main(arguments, quote! { fn main() {} }).unwrap().to_string();
        assert!(declared(quote!()).contains("allocator !"));
        let own = declared(quote!(allocator = crate::memory::ALLOC));
        assert!(!own.contains("allocator !") && own.contains("crate :: memory :: ALLOC"), "{own}");
    }

    #[test]
    fn attributes_and_visibility_of_the_function_stay() {
        let none = TokenStream::new();
        let test = test(&none, quote! { #[ignore] pub fn slow() {} }).unwrap().to_string();
        assert!(test.contains(&quote! { #[ignore] pub fn slow() }.to_string()), "{test}");
        let main = main(none, quote! { #[inline] fn main() -> Option<u8> { None } }).unwrap().to_string();
        assert!(main.contains(&quote! { #[inline] fn main() }.to_string()), "{main}");
    }
}
