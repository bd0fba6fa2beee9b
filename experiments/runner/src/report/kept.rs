// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections of a page that was written before: those whose experiment is not judged anew stay.

/// One experiment on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    /// Name of the experiment.
    pub(super) name: String,
    /// Its lines in the table at the head, with their ends.
    pub(super) rows: String,
    /// From its heading on, with the empty line before it.
    pub(super) text: String,
}

/// The sections of a page, in their order.
pub(super) fn read(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            let (name, text) = (name.trim().to_owned(), "\n".to_owned());
            sections.push(Section { name, text, ..Section::default() });
        } else if sections.is_empty() {
            rows.push(line);
        }
        if let Some(section) = sections.last_mut() {
            section.text += line;
            section.text.push('\n');
        }
    }
    for section in &mut sections {
        let start = format!("| [{}](", section.name);
        let own = rows.iter().filter(|row| row.starts_with(&start));
        section.rows = own.map(|row| format!("{row}\n")).collect();
        // One empty line stands before the next heading, and it is that one's.
        section.text.truncate(section.text.trim_end().len());
        section.text += "\n";
    }
    sections
}

/// The sections of a page with these in their place, new ones at the end.
pub(super) fn renew(mut page: Vec<Section>, new: Vec<Section>) -> Vec<Section> {
    for section in new {
        match page.iter_mut().find(|old| old.name == section.name) {
            Some(old) => *old = section,
            None => page.push(section),
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Results\n\nWords.\n\n| experiment | what |\n| --- | --- |\n\
        | [a/b](#ab) | sim |\n| [a/b](#ab) | lab |\n| [a/bc](#abc) | lab |\n\n## a/b\n\nB.\n\n\
        ### More\n\n## a/bc\n\nC.\n\n";

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let sections = read(PAGE);
        let of = |name: &str, rows: &str, text: &str| Section {
            name: name.into(),
            rows: rows.into(),
            text: text.into(),
        };
        let expected = [
            of(
                "a/b",
                "| [a/b](#ab) | sim |\n| [a/b](#ab) | lab |\n",
                "\n## a/b\n\nB.\n\n### More\n",
            ),
            of("a/bc", "| [a/bc](#abc) | lab |\n", "\n## a/bc\n\nC.\n"),
        ];
        assert_eq!(sections, expected);
        assert!(read("").is_empty() && read("# Results\n").is_empty());
    }

    #[test]
    fn what_is_new_takes_its_place() {
        let new = |name: &str| Section { name: name.into(), ..Section::default() };
        let names = |page: Vec<Section>| page.into_iter().map(|s| s.name).collect::<Vec<_>>();
        let renewed = renew(read(PAGE), vec![new("a/d"), new("a/b")]);
        assert!(renewed[0].text.is_empty() && !renewed[1].text.is_empty());
        assert_eq!(names(renewed), ["a/b", "a/bc", "a/d"]);
    }
}
