// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With the feature `ablate` the numbers of this crate can be changed while it runs: this writes a copy
//! of its modules in which each `const` that stands for a number is a function that asks `ablate`.
//! Without the feature it does nothing, and the product is built of the sources as they stand.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ablate")]
    instrument::write();
}

#[cfg(feature = "ablate")]
mod instrument {
    use quote::{ToTokens, quote};
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use syn::visit::{self, Visit};
    use syn::visit_mut::{self, VisitMut};
    use syn::{Attribute, Expr, File, ImplItemFn, Item, ItemConst, ItemFn, Type, UseTree};

    /// Modules whose numbers can be changed.
    const MODULES: [&str; 3] = ["detect", "law", "fleet"];
    /// Types of those numbers, as they are written.
    const TYPES: [&str; 6] = ["f64", "u32", "u64", "usize", "Nanos", "(f64 , f64)"];

    /// A source file, read.
    struct Source {
        /// As it is named in results: `detect/alarm.rs`.
        name: String,
        path: PathBuf,
        file: File,
        /// The numbers it defines that can be changed.
        own: BTreeSet<String>,
    }

    pub(super) fn write() {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        println!("cargo::rerun-if-changed={}", src.display());
        let mut sources = Vec::new();
        for module in MODULES {
            read(&src, &src.join(module).join("mod.rs"), &mut sources);
        }
        let all: BTreeSet<String> = sources.iter().flat_map(|s| s.own.iter().cloned()).collect();
        let (mut list, mut modules) = (Vec::new(), Vec::new());
        for module in MODULES {
            let path = src.join(module).join("mod.rs");
            let file = build(&path, &sources, &all, &mut list);
            let name = quote::format_ident!("{module}");
            let public = if module == "fleet" { quote!(pub) } else { quote!() };
            modules.push(quote!(#[allow(warnings, clippy::all)] #public mod #name { #file }));
        }
        let out = quote! {
            /// The numbers that can be changed, in the order of the sources.
            pub(crate) const NUMBERS: &[(&str, &str, &str)] = &[#(#list),*];
            #(#modules)*
        };
        let to = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("ablate.rs");
        std::fs::write(to, out.to_string()).expect("the folder is ours");
    }

    /// Where the module `name` of the file at `path` stands.
    fn child(path: &Path, name: &str) -> PathBuf {
        let folder = path.parent().expect("a folder");
        let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod") | None => folder.to_path_buf(),
            Some(stem) => folder.join(stem),
        };
        let flat = folder.join(format!("{name}.rs"));
        if flat.exists() { flat } else { folder.join(name).join("mod.rs") }
    }

    /// Reads a file and the modules below it.
    fn read(src: &Path, path: &Path, sources: &mut Vec<Source>) {
        let text = std::fs::read_to_string(path).expect("a module has a file");
        let file = syn::parse_file(&text).expect("it compiles without the feature");
        let mut fixed = Fixed::default();
        fixed.visit_file(&file);
        let is_number = |item: &ItemConst| {
            let written = item.ty.to_token_stream().to_string();
            // What others use stays a constant.
            !matches!(item.vis, syn::Visibility::Public(_))
                && TYPES.contains(&written.as_str())
                && !fixed.0.contains(&item.ident.to_string())
        };
        let own = file.items.iter().filter_map(|item| match item {
            Item::Const(item) if is_number(item) => Some(item.ident.to_string()),
            _ => None,
        });
        let own = own.collect();
        let children: Vec<PathBuf> = file
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Mod(m) if m.content.is_none() => Some(child(path, &m.ident.to_string())),
                _ => None,
            })
            .collect();
        let name = path.strip_prefix(src).expect("below it").display().to_string();
        sources.push(Source { name, path: path.to_path_buf(), file, own });
        children.iter().for_each(|path| read(src, path, sources));
    }

    /// Names that have to stay constants: they are the length of an array, or in a macro.
    #[derive(Default)]
    struct Fixed(BTreeSet<String>);

    impl Fixed {
        fn take(&mut self, tokens: proc_macro2::TokenStream) {
            for token in tokens {
                match token {
                    proc_macro2::TokenTree::Ident(ident) => drop(self.0.insert(ident.to_string())),
                    proc_macro2::TokenTree::Group(group) => self.take(group.stream()),
                    _ => (),
                }
            }
        }
    }

    impl Visit<'_> for Fixed {
        fn visit_type_array(&mut self, array: &syn::TypeArray) {
            self.take(array.len.to_token_stream());
        }

        fn visit_expr_repeat(&mut self, repeat: &syn::ExprRepeat) {
            self.take(repeat.len.to_token_stream());
            visit::visit_expr_repeat(self, repeat);
        }

        fn visit_macro(&mut self, found: &syn::Macro) {
            self.take(found.tokens.clone());
        }

        fn visit_impl_item_const(&mut self, item: &syn::ImplItemConst) {
            self.take(item.expr.to_token_stream());
        }
    }

    /// Names that a file imports, but those of lib.rs, which stay constants.
    fn imported(tree: &UseTree, of_crate: bool, names: &mut BTreeSet<String>) {
        match tree {
            UseTree::Path(path) => imported(&path.tree, path.ident == "crate", names),
            UseTree::Name(name) if !of_crate => drop(names.insert(name.ident.to_string())),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| imported(tree, of_crate, names));
            }
            UseTree::Name(_) | UseTree::Rename(_) | UseTree::Glob(_) => (),
        }
    }

    /// A file with its modules inside, and functions in place of numbers.
    fn build(
        path: &Path,
        sources: &[Source],
        all: &BTreeSet<String>,
        list: &mut Vec<proc_macro2::TokenStream>,
    ) -> File {
        let source = sources.iter().find(|source| source.path == path).expect("it was read");
        let mut names = BTreeSet::new();
        for item in &source.file.items {
            if let Item::Use(item) = item {
                imported(&item.tree, false, &mut names);
            }
        }
        let names = names.intersection(all).chain(&source.own).cloned().collect();
        let mut calls = Calls { names, called: false };
        let mut file = source.file.clone();
        for item in &mut file.items {
            match item {
                Item::Const(number) if source.own.contains(&number.ident.to_string()) => {
                    let (index, name) = (list.len(), number.ident.to_string());
                    let (file, value) = (&source.name, number.expr.to_token_stream().to_string());
                    list.push(quote!((#file, #name, #value)));
                    calls.visit_expr_mut(&mut number.expr);
                    let ItemConst { attrs, vis, ident, ty, expr, .. } = number;
                    *item = syn::parse_quote! {
                        #(#attrs)* #vis fn #ident() -> #ty { crate::ablate::asked(#index, #expr) }
                    };
                }
                Item::Mod(module) if module.content.is_none() => {
                    let inside = build(&child(path, &module.ident.to_string()), sources, all, list);
                    let (attrs, items) = (inside.attrs, inside.items);
                    module.attrs.extend(
                        attrs.into_iter().map(|attribute| Attribute {
                            style: syn::AttrStyle::Outer,
                            ..attribute
                        }),
                    );
                    module.content = Some((syn::token::Brace::default(), items));
                    module.semi = None;
                }
                other => calls.visit_item_mut(other),
            }
        }
        file
    }

    /// Puts a call where a number was named. A function that calls one is no longer `const`.
    struct Calls {
        names: BTreeSet<String>,
        called: bool,
    }

    impl VisitMut for Calls {
        fn visit_expr_mut(&mut self, expr: &mut Expr) {
            if let Expr::Path(path) = expr
                && path.path.get_ident().is_some_and(|i| self.names.contains(&i.to_string()))
            {
                *expr = syn::parse_quote!(#path());
                self.called = true;
                return;
            }
            visit_mut::visit_expr_mut(self, expr);
        }

        fn visit_type_mut(&mut self, _: &mut Type) {}

        fn visit_item_fn_mut(&mut self, item: &mut ItemFn) {
            self.called = false;
            visit_mut::visit_item_fn_mut(self, item);
            item.sig.constness = item.sig.constness.filter(|_| !self.called);
        }

        fn visit_impl_item_fn_mut(&mut self, item: &mut ImplItemFn) {
            self.called = false;
            visit_mut::visit_impl_item_fn_mut(self, item);
            item.sig.constness = item.sig.constness.filter(|_| !self.called);
        }
    }
}
