import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaNormalization;

/**
 * What Apache Avro makes of schema texts. A line of input is {"text", "references", "names", "validate_defaults"}, a
 * line of output {"text", "known", "canonical", "crc", "md5", "logical"} or {"error"}.
 */
public class AvroSchemaOracle {
  static final ObjectMapper MAPPER =
      new ObjectMapper(JsonFactory.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build());

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line; (line = in.readLine()) != null;) {
      out.println(MAPPER.writeValueAsString(verdict(MAPPER.readTree(line))));
    }
    out.flush();
  }

  static ObjectNode verdict(JsonNode question) {
    ObjectNode answer = MAPPER.createObjectNode();
    try {
      Schema.Parser parser = new Schema.Parser(names(question.path("names").asText("unicode")));
      parser.setValidateDefaults(question.path("validate_defaults").asBoolean(true));
      List<Schema> references = new ArrayList<>();
      for (JsonNode reference : question.path("references")) {
        references.add(parser.parse(reference.asText()));
      }
      Schema schema = parser.parse(question.get("text").asText());
      answer.put("text", schema.toString());
      if (!references.isEmpty()) {
        answer.put("known", schema.toString(references, false));
      }
      answer.put("canonical", SchemaNormalization.toParsingForm(schema));
      answer.put("crc", Long.toHexString(SchemaNormalization.parsingFingerprint64(schema)));
      answer.put("md5", HexFormat.of().formatHex(SchemaNormalization.parsingFingerprint("MD5", schema)));
      ArrayNode logical = answer.putArray("logical");
      collect(schema, new HashSet<>(), logical);
    } catch (Exception | StackOverflowError error) {
      answer.removeAll();
      answer.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
    }
    return answer;
  }

  static NameValidator names(String kind) {
    switch (kind) {
    case "ascii":
      return NameValidator.STRICT_VALIDATOR;
    case "any":
      return NameValidator.NO_VALIDATION;
    default:
      return NameValidator.UTF_VALIDATOR;
    }
  }

  /** The valid logical types, in the order of the text. */
  static void collect(Schema schema, Set<String> seen, ArrayNode found) {
    switch (schema.getType()) {
    case RECORD:
    case ENUM:
    case FIXED:
      if (!seen.add(schema.getFullName())) {
        return;
      }
      break;
    default:
    }
    if (schema.getLogicalType() != null) {
      found.add(schema.getType().getName() + ":" + schema.getLogicalType().getName());
    }
    switch (schema.getType()) {
    case RECORD:
      for (Schema.Field field : schema.getFields()) {
        collect(field.schema(), seen, found);
      }
      break;
    case ARRAY:
      collect(schema.getElementType(), seen, found);
      break;
    case MAP:
      collect(schema.getValueType(), seen, found);
      break;
    case UNION:
      for (Schema branch : schema.getTypes()) {
        collect(branch, seen, found);
      }
      break;
    default:
    }
  }
}
