// Elements are made and filled here, never parsed from text: what a model writes can only become text.

// properties: attributes, "on..." listeners, and "text" for the content.
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function drawing(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") {
      node.textContent = value;
    } else if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== undefined && value !== null) {
      node.setAttribute(name, String(value));
    }
  }
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

// Said to those who hear the page instead of seeing it.
export function announce(text) {
  byId("announce").textContent = text;
}
