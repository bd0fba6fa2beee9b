// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From C headers to Rust: what the build scripts of tidegate-policy and tidegate-bpf have in common
//! (docs/decisions/0024-generated-abi.md).

use bindgen::callbacks::{DeriveInfo, IntKind, ItemInfo, ItemKind, ParseCallbacks, TypeKind};
use bindgen::{Builder, RustEdition};

/// Bytes in and out without `unsafe`. The compiler refuses a structure that has padding.
const TRAITS: [&str; 4] = ["FromBytes", "IntoBytes", "Immutable", "KnownLayout"];

/// Bindings of the project's C: `struct tg_flow_way` is `FlowWay`, `TG_FLOW_WAYS` is `FLOW_WAYS`;
/// functions keep their names. A constant is a `usize`, unless `constants` has another type for
/// the beginning of its name (the first that fits), or it is larger than 32 bits.
pub(crate) fn bindings(constants: &'static [(&'static str, IntKind)]) -> Builder {
    let fixed = [8, 16, 32, 64].into_iter().flat_map(|bits| {
        let [unsigned, signed] = [format!("uint{bits}_t"), format!("int{bits}_t")];
        [
            format!("-Dtg_u{bits}={unsigned}"),
            format!("-D__u{bits}={unsigned}"),
            format!("-D__s{bits}={signed}"),
        ]
    });
    Builder::default()
        .rust_edition(RustEdition::Edition2024)
        .clang_args(fixed)
        .prepend_enum_name(false)
        .derive_default(true)
        .parse_callbacks(Box::new(House { constants }))
}

/// The names and types of this project.
#[derive(Debug)]
struct House {
    constants: &'static [(&'static str, IntKind)],
}

impl ParseCallbacks for House {
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

    fn add_derives(&self, of: &DeriveInfo<'_>) -> Vec<String> {
        let plain = matches!(of.kind, TypeKind::Struct);
        let derives = TRAITS.iter().filter(|_| plain);
        derives.map(|derive| format!("zerocopy::{derive}")).collect()
    }
}
