//! A definition as a picture: inputs on the left, each stage a column after what it uses, the output on the right.

use std::fmt::Write;

use super::graph::{Definition, Stage, StageKind};
use crate::summary::Arity;

const WIDTH: usize = 168;
const HEIGHT: usize = 52;
const GAP_X: usize = 64;
const GAP_Y: usize = 22;
const MARGIN: usize = 20;

/// A box with its two lines of text.
struct Node {
    title: String,
    note: String,
    class: &'static str,
    column: usize,
    row: usize,
}

impl Node {
    const fn x(&self) -> usize {
        MARGIN + self.column * (WIDTH + GAP_X)
    }

    const fn y(&self) -> usize {
        MARGIN + self.row * (HEIGHT + GAP_Y)
    }
}

impl Definition {
    /// The graph as SVG, readable on light and dark ground.
    pub fn draw(&self) -> String {
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        let inputs = self.place_inputs(&mut nodes);
        let first = nodes.len();
        for (at, stage) in self.stages.iter().enumerate() {
            let used = inputs.iter().filter(|(_, name)| self.takes(stage, name)).map(|(node, _)| *node);
            let from: Vec<usize> = used.chain(stage.needs().map(|needed| first + needed)).collect();
            let column = from
                .iter()
                .map(|&node: &usize| nodes.get(node).map_or(0, |node: &Node| node.column))
                .max()
                .unwrap_or(0)
                + 1;
            let row = nodes.iter().filter(|node| node.column == column).count();
            let class = if at == self.output { "output" } else { "stage" };
            let note = match stage.model() {
                Some(model) => {
                    format!("{} with {}", stage.kind_name(), model.candidates.first().map_or("?", String::as_str))
                }
                None => stage.kind_name().to_owned(),
            };
            edges.extend(from.into_iter().map(|from| (from, first + at)));
            nodes.push(Node { title: stage.id.clone(), note, class, column, row });
        }
        svg(&self.name, &nodes, &edges)
    }

    fn place_inputs(&self, nodes: &mut Vec<Node>) -> Vec<(usize, &'static str)> {
        let kinds = [("images", self.inputs.images), ("audios", self.inputs.audios), ("prompt", self.inputs.prompt)];
        let mut inputs = Vec::new();
        for (name, arity) in kinds.into_iter().filter(|(_, arity)| *arity != Arity::None) {
            inputs.push((nodes.len(), name));
            let note = format!("{arity:?}").to_lowercase();
            nodes.push(Node { title: name.to_owned(), note, class: "input", column: 0, row: nodes.len() });
        }
        inputs
    }

    fn takes(&self, stage: &Stage, input: &str) -> bool {
        match &stage.kind {
            StageKind::Image => input == "images",
            StageKind::Audio | StageKind::Transcribe { .. } => input == "audios",
            StageKind::Text { template, .. } => input == "prompt" && template.source().contains("inputs.prompt"),
            StageKind::Generate(generate) => {
                let templates = std::iter::once(&generate.prompt).chain(&generate.system);
                input == "prompt" && templates.into_iter().any(|template| template.source().contains("inputs.prompt"))
            }
        }
    }
}

fn svg(name: &str, nodes: &[Node], edges: &[(usize, usize)]) -> String {
    let width = nodes.iter().map(Node::x).max().unwrap_or(0) + WIDTH + MARGIN;
    let height = nodes.iter().map(Node::y).max().unwrap_or(0) + HEIGHT + MARGIN;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif">
<title>{}</title>
<style>rect{{fill:#f4f4f6;stroke:#8a8f98}} .input{{fill:#e8f0fe}} .output{{fill:#e6f4ea;stroke:#188038;stroke-width:2}} text{{fill:#202124;font-size:14px}} .note{{fill:#5f6368;font-size:11px}} path{{fill:none;stroke:#8a8f98;stroke-width:1.5}}</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#8a8f98"/></marker></defs>
"##,
        escaped(name)
    );
    for (from, to) in edges {
        let (Some(from), Some(to)) = (nodes.get(*from), nodes.get(*to)) else { continue };
        let (x1, y1, x2, y2) = (from.x() + WIDTH, from.y() + HEIGHT / 2, to.x() - 2, to.y() + HEIGHT / 2);
        let bend = x1 + GAP_X / 2;
        let _ = writeln!(
            out,
            r#"<path d="M{x1} {y1}C{bend} {y1} {} {y2} {x2} {y2}" marker-end="url(#end)"/>"#,
            x2 - GAP_X / 2
        );
    }
    for node in nodes {
        let (x, y) = (node.x(), node.y());
        let _ = writeln!(
            out,
            r#"<rect class="{}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/><text x="{}" y="{}">{}</text><text class="note" x="{}" y="{}">{}</text>"#,
            node.class,
            x + 12,
            y + 22,
            escaped(&node.title),
            x + 12,
            y + 40,
            escaped(&node.note.chars().take(32).collect::<String>())
        );
    }
    out + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
