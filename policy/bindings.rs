// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From C headers to Rust: what the build scripts of tidegate-policy and tidegate-bpf have in common
//! (docs/decisions/0024-generated-abi.md).

use bindgen::callbacks::{
    DeriveInfo, FieldInfo, IntKind, ItemInfo, ItemKind, ParseCallbacks, TypeKind,
};
use bindgen::{Builder, FieldVisibilityKind};

/// Bytes in and out without `unsafe`. The compiler refuses a structure that has padding.
const TRAITS: [&str; 4] = ["FromBytes", "IntoBytes", "Immutable", "KnownLayout"];

/// What the C does not say.
#[derive(Debug)]
pub(crate) struct Conventions {
    /// Types of constants by the beginnings of their names; the first that fits counts. Others are
    /// `usize`, or `u64` where 32 bits are too few.
    pub(crate) constants: &'static [(&'static str, IntKind)],
    /// Fields that only the crate sees, as beginnings of `type.field`.
    pub(crate) private: &'static [&'static str],
}

/// Bindings of the project's C: `struct tg_flow_way` is `FlowWay`, `TG_FLOW_WAYS` is `FLOW_WAYS`;
/// functions and values of enumerations keep their names.
pub(crate) fn bindings(conventions: Conventions) -> Builder {
    // The names of fixed widths that bindgen knows: `u32`, not an alias of `c_uint`.
    let fixed = [8, 16, 32, 64].into_iter().flat_map(|bits| {
        let [unsigned, signed] = [format!("uint{bits}_t"), format!("int{bits}_t")];
        [
            format!("-Dtg_u{bits}={unsigned}"),
            format!("-D__u{bits}={unsigned}"),
            format!("-D__s{bits}={signed}"),
        ]
    });
    Builder::default()
        .clang_args(fixed)
        .disable_untagged_union()
        .prepend_enum_name(false)
        .derive_default(true)
        .parse_callbacks(Box::new(conventions))
}

impl ParseCallbacks for Conventions {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        match item.kind {
            ItemKind::Type => {
                let words = item.name.strip_prefix("tg_").unwrap_or(item.name).split('_');
                let words = words.filter(|word| !word.is_empty());
                Some(words.map(|word| word[..1].to_uppercase() + &word[1..]).collect())
            }
            ItemKind::Var => item.name.strip_prefix("TG_").map(str::to_string),
            _ => None,
        }
    }

    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        let named = self.constants.iter().find(|(prefix, _)| name.starts_with(prefix));
        let size = IntKind::Custom { name: "usize", is_signed: false };
        match named {
            Some((_, kind)) => Some(*kind),
            None => u32::try_from(value).is_ok().then_some(size),
        }
    }

    fn field_visibility(&self, field: FieldInfo<'_>) -> Option<FieldVisibilityKind> {
        let name = format!("{}.{}", field.type_name, field.field_name);
        let is_private = self.private.iter().any(|private| name.starts_with(private));
        is_private.then_some(FieldVisibilityKind::PublicCrate)
    }

    fn add_derives(&self, of: &DeriveInfo<'_>) -> Vec<String> {
        let plain = matches!(of.kind, TypeKind::Struct);
        let derives = TRAITS.iter().filter(|_| plain);
        derives.map(|derive| format!("zerocopy::{derive}")).collect()
    }
}
