// SPDX-License-Identifier: GPL-2.0-or-later
#include "xml.h"

#include <libxml/parser.h>

#include "paths.h"

namespace lab::xml {

namespace {

const xmlChar *x(const char *text) { return reinterpret_cast<const xmlChar *>(text); }
std::string taken(xmlChar *text) {
    std::string out = text ? reinterpret_cast<char *>(text) : "";
    xmlFree(text);
    return out;
}

int depth(xmlNodePtr node) {
    int n = 0;
    for (; node->parent && node->parent->type == XML_ELEMENT_NODE; node = node->parent) n++;
    return n;
}

xmlNodePtr line(int indent) {
    return xmlNewText(x(('\n' + std::string(2 * static_cast<size_t>(indent), ' ')).c_str()));
}

// Puts an element behind `before` (nullptr: first) on a line of its own. White space goes beside elements only: libxml2
// merges a text that it is to add beside another into that one, and frees it.
xmlNodePtr put(xmlNodePtr parent, xmlNodePtr before, const char *name, xmlNsPtr ns) {
    xmlNodePtr node = xmlNewDocNode(parent->doc, ns, x(name), nullptr);
    const int indent = depth(parent) + 1;
    xmlNodePtr first = parent->children;
    if (!first) {
        xmlAddChild(parent, node);
        xmlAddPrevSibling(node, line(indent));
        xmlAddNextSibling(node, line(indent - 1));
    } else if (before) {
        xmlAddNextSibling(before, node);
        xmlAddPrevSibling(node, line(indent));
    } else if (first->type == XML_TEXT_NODE && xmlIsBlankNode(first) && first->next) {
        xmlAddNextSibling(first, node);
        xmlAddNextSibling(node, line(indent));
    } else {
        xmlAddPrevSibling(first, node);
        xmlAddPrevSibling(node, line(indent));
    }
    return node;
}

}  // namespace

Document::Document(const std::string &text)
    : doc_(xmlReadMemory(text.data(), static_cast<int>(text.size()), "domain.xml", nullptr,
                         XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING)) {
    if (!doc_ || !root()) throw UserError("the domain's description is not well-formed XML");
}

std::string Document::text() const {
    xmlBufferPtr buffer = xmlBufferCreate();
    xmlNodeDump(buffer, doc_.get(), root(), 0, 0);
    std::string out = reinterpret_cast<const char *>(xmlBufferContent(buffer));
    xmlBufferFree(buffer);
    return out + '\n';
}

bool is(xmlNodePtr node, const char *name, const char *namespace_uri) {
    return node && node->type == XML_ELEMENT_NODE && xmlStrEqual(node->name, x(name)) &&
           std::string(node->ns && node->ns->href ? reinterpret_cast<const char *>(node->ns->href) : "") ==
               namespace_uri;
}

std::vector<xmlNodePtr> children(xmlNodePtr parent, const char *name, const char *namespace_uri) {
    std::vector<xmlNodePtr> found;
    for (xmlNodePtr n = parent ? parent->children : nullptr; n; n = n->next)
        if (is(n, name, namespace_uri)) found.push_back(n);
    return found;
}

xmlNodePtr child(xmlNodePtr parent, const char *name, const char *namespace_uri) {
    const std::vector<xmlNodePtr> all = children(parent, name, namespace_uri);
    return all.empty() ? nullptr : all.front();
}

bool has_elements(xmlNodePtr node) {
    for (xmlNodePtr n = node->children; n; n = n->next)
        if (n->type == XML_ELEMENT_NODE) return true;
    return false;
}

void each_element(xmlNodePtr node, const std::function<void(xmlNodePtr)> &visit) {
    if (!node || node->type != XML_ELEMENT_NODE) return;
    visit(node);
    for (xmlNodePtr n = node->children; n; n = n->next) each_element(n, visit);
}

std::string attribute(xmlNodePtr node, const char *name) { return node ? taken(xmlGetNoNsProp(node, x(name))) : ""; }
void set_attribute(xmlNodePtr node, const char *name, const std::string &value) {
    xmlSetProp(node, x(name), x(value.c_str()));
}
std::string content(xmlNodePtr node) { return node ? taken(xmlNodeGetContent(node)) : ""; }

void set_content(xmlNodePtr node, const std::string &text) {
    xmlNodeSetContent(node, nullptr);
    xmlNodeAddContent(node, x(text.c_str()));  // escapes what must be
}

xmlNodePtr append(xmlNodePtr parent, const char *name, xmlNsPtr ns) {
    xmlNodePtr last = parent->last;
    while (last && last->type == XML_TEXT_NODE && xmlIsBlankNode(last)) last = last->prev;
    return put(parent, last, name, ns);
}

xmlNodePtr insert_after(xmlNodePtr parent, const std::vector<const char *> &after, const char *name, xmlNsPtr ns) {
    xmlNodePtr before = nullptr;
    for (xmlNodePtr n = parent->children; n; n = n->next)
        for (const char *a : after)
            if (is(n, a)) before = n;
    return put(parent, before, name, ns);
}

void remove(xmlNodePtr node) {
    xmlNodePtr space = node->prev;
    if (space && space->type == XML_TEXT_NODE && xmlIsBlankNode(space)) {
        xmlUnlinkNode(space);
        xmlFreeNode(space);
    }
    xmlUnlinkNode(node);
    xmlFreeNode(node);
}

}  // namespace lab::xml
