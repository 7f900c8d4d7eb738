// SPDX-License-Identifier: GPL-2.0-or-later
// xml.h: libxml2 as far as editing a domain needs it: a document that frees itself, elements by name, attributes, and
// insertion and removal that keep the indentation which is there.
#pragma once

#include <libxml/tree.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lab::xml {

class Document {
  public:
    // Throws UserError when it is not well-formed. No network, no external entities.
    explicit Document(const std::string &text);
    xmlNodePtr root() const { return xmlDocGetRootElement(doc_.get()); }
    // Without the XML declaration.
    std::string text() const;

  private:
    struct Free {
        void operator()(xmlDocPtr d) const { xmlFreeDoc(d); }
    };
    std::unique_ptr<xmlDoc, Free> doc_;
};

// namespace_uri empty: elements without namespace.
bool is(xmlNodePtr node, const char *name, const char *namespace_uri = "");
// nullptr: none.
xmlNodePtr child(xmlNodePtr parent, const char *name, const char *namespace_uri = "");
std::vector<xmlNodePtr> children(xmlNodePtr parent, const char *name, const char *namespace_uri = "");
bool has_elements(xmlNodePtr node);
// The node and all elements below it.
void each_element(xmlNodePtr node, const std::function<void(xmlNodePtr)> &visit);

// "" when it is not there.
std::string attribute(xmlNodePtr node, const char *name);
void set_attribute(xmlNodePtr node, const char *name, const std::string &value);
std::string content(xmlNodePtr node);
void set_content(xmlNodePtr node, const std::string &text);

// A new last child, or one after the last of the children named in `after`.
xmlNodePtr append(xmlNodePtr parent, const char *name, xmlNsPtr ns = nullptr);
xmlNodePtr insert_after(xmlNodePtr parent, const std::vector<const char *> &after, const char *name,
                        xmlNsPtr ns = nullptr);
// With the white space in front of it.
void remove(xmlNodePtr node);

}  // namespace lab::xml
